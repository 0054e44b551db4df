// CRC32C by the processor's instruction where there is one, by tables elsewhere.
#include "crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace hedgerow {
namespace {

constexpr u32 kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits in reverse
constexpr int kSlices = 8;               // bytes taken at once

using Tables = std::array<std::array<u32, 256>, kSlices>;

// Table k advances a byte's remainder over k more bytes of zeros.
constexpr Tables make_tables() {
  Tables tables{};
  for (u32 byte = 0; byte < 256; ++byte) {
    u32 crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (int k = 1; k < kSlices; ++k)
    for (u32 byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

HR_INLINE u64 little_endian(const u8* data) {
  u64 word;
  std::memcpy(&word, data, 8);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

#if defined(__x86_64__)
#define HR_CRC_BY_INSTRUCTION
// Every machine that runs the core at all (x86-64-v2) has the instruction: nothing to choose.
bool has_instruction() { return true; }
HR_INLINE u32 step8(u32 crc, u64 word) { return u32(_mm_crc32_u64(crc, word)); }
HR_INLINE u32 step1(u32 crc, u8 byte) { return _mm_crc32_u8(crc, byte); }
#define HR_TARGET_CRC
#elif defined(__aarch64__) && defined(__linux__)
#define HR_CRC_BY_INSTRUCTION
#define HR_TARGET_CRC __attribute__((target("+crc")))
bool has_instruction() {
  static const bool found = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return found;
}
HR_TARGET_CRC HR_INLINE u32 step8(u32 crc, u64 word) { return __crc32cd(crc, word); }
HR_TARGET_CRC HR_INLINE u32 step1(u32 crc, u8 byte) { return __crc32cb(crc, byte); }
#endif

#if defined(HR_CRC_BY_INSTRUCTION)
HR_TARGET_CRC u32 crc32c_by_instruction(const u8* data, u64 n, u32 seed) {
  u32 crc = ~seed;
  for (; n >= 8; data += 8, n -= 8) crc = step8(crc, little_endian(data));
  for (; n > 0; ++data, --n) crc = step1(crc, *data);
  return ~crc;
}
#endif

}  // namespace

u32 crc32c_by_table(const u8* data, u64 n, u32 seed) {
  u32 crc = ~seed;
  for (; n >= 8; data += 8, n -= 8) {
    const u64 word = little_endian(data) ^ crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; n > 0; ++data, --n) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xff];
  return ~crc;
}

u32 crc32c(const u8* data, u64 n, u32 seed) {
#if defined(HR_CRC_BY_INSTRUCTION)
  if (has_instruction()) return crc32c_by_instruction(data, n, seed);
#endif
  return crc32c_by_table(data, n, seed);
}

}  // namespace hedgerow
