// Integer names and the mixer that places keys inside a table.
#pragma once

#include <cstddef>
#include <cstdint>

#define HR_INLINE inline __attribute__((always_inline))

namespace hedgerow {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i64 = std::int64_t;
using u128 = unsigned __int128;

// It must share no structure with the router's mix64: with the same bits for rank and bucket, a
// rank that owns every 64th hash would leave most of its buckets unreachable.
HR_INLINE u64 slot_hash(u64 key) {
  const u128 product = u128(key ^ 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
  return u64(product) ^ u64(product >> 64);
}

}  // namespace hedgerow
