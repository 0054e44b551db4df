// XXH64 as published, over many strings in one buffer.
#include "hash_strings.h"

#include <bit>
#include <cstring>

namespace hedgerow {
namespace {

constexpr u64 kP1 = 0x9e3779b185ebca87ull;
constexpr u64 kP2 = 0xc2b2ae3d27d4eb4full;
constexpr u64 kP3 = 0x165667b19e3779f9ull;
constexpr u64 kP4 = 0x85ebca77c2b2ae63ull;
constexpr u64 kP5 = 0x27d4eb2f165667c5ull;

HR_INLINE u64 word64(const u8* data) {
  u64 word;
  std::memcpy(&word, data, 8);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

HR_INLINE u64 word32(const u8* data) {
  u32 word;
  std::memcpy(&word, data, 4);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap32(word);
  return word;
}

HR_INLINE u64 round_of(u64 lane, u64 word) { return std::rotl(lane + word * kP2, 31) * kP1; }

// The state after all whole blocks of 32 bytes; `data` is moved behind them.
u64 long_state(const u8*& data, const u8* end, u64 seed) {
  u64 lanes[4] = {seed + kP1 + kP2, seed + kP2, seed, seed - kP1};
  for (; end - data >= 32; data += 32)
    for (int i = 0; i < 4; ++i) lanes[i] = round_of(lanes[i], word64(data + 8 * i));
  u64 state = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
              std::rotl(lanes[3], 18);
  for (const u64 lane : lanes) state = (state ^ round_of(0, lane)) * kP1 + kP4;
  return state;
}

}  // namespace

u64 xxh64(const u8* data, u64 n, u64 seed) {
  const u8* const end = data + n;
  u64 state = (n >= 32 ? long_state(data, end, seed) : seed + kP5) + n;
  for (; end - data >= 8; data += 8)
    state = std::rotl(state ^ round_of(0, word64(data)), 27) * kP1 + kP4;
  if (end - data >= 4) {
    state = std::rotl(state ^ (word32(data) * kP1), 23) * kP2 + kP3;
    data += 4;
  }
  for (; data != end; ++data) state = std::rotl(state ^ (*data * kP5), 11) * kP1;
  state = (state ^ (state >> 33)) * kP2;
  state = (state ^ (state >> 29)) * kP3;
  return state ^ (state >> 32);
}

void hash_strings(const u8* data, const i64* offsets, u64 n, u64 seed, u64* out) {
  for (u64 i = 0; i < n; ++i)
    out[i] = xxh64(data + offsets[i], u64(offsets[i + 1] - offsets[i]), seed);
}

}  // namespace hedgerow
