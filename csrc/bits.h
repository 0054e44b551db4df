// Integer names and prefetching.
#pragma once

#include <cstddef>
#include <cstdint>

#define HR_INLINE inline __attribute__((always_inline))

namespace hedgerow {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i8 = std::int8_t;
// Sizes of the library are these types, too, on every system: std::uint64_t is another one on some.
using u64 = std::size_t;
using i64 = std::ptrdiff_t;
static_assert(sizeof(u64) == 8 && sizeof(i64) == 8);
using u128 = unsigned __int128;

// Asks for the line of an address, soon to be used. Not the compiler's builtin where that can be
// avoided: GCC takes a function of nothing but builtin prefetches for one without effect and drops
// its calls.
HR_INLINE void fetch_line(const void* address) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const u8*>(address)));
#elif defined(__aarch64__)
  asm volatile("prfm pldl1keep, %0" : : "Q"(*static_cast<const u8*>(address)));
#else
  __builtin_prefetch(address);
#endif
}

// All lines that the bytes touch: callers' arrays need not start at one.
HR_INLINE void fetch_bytes(const void* from, u64 bytes) {
  const u64 end = u64(from) + bytes;
  for (u64 line = u64(from) & ~u64(63); line < end; line += 64)
    fetch_line(reinterpret_cast<const void*>(line));
}

}  // namespace hedgerow
