// Philox4x32-10: the counter-based generator behind first values, stochastic rounding and chance
// admission.
#pragma once

#include "bits.h"

namespace hedgerow {

enum class Stream : u32 { first_values = 0, rounding = 1, chance = 2 };

struct PhiloxWords {
  u32 word[4];
};

// The fourth counter word: which stream, which attempt of it, and the low 24 bits of the step.
HR_INLINE u32 philox_tag(Stream stream, u32 attempt, i64 step) {
  return u32(stream) | (attempt << 4) | (u32(step) << 8);
}

HR_INLINE PhiloxWords philox(PhiloxWords counter, u32 key0, u32 key1) {
  u32 c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const u64 left = u64(0xD2511F53u) * c0;
    const u64 right = u64(0xCD9E8D57u) * c2;
    c0 = u32(right >> 32) ^ c1 ^ key0;
    c2 = u32(left >> 32) ^ c3 ^ key1;
    c1 = u32(right);
    c3 = u32(left);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Everything of a draw that does not change along one row.
struct RowDraw {
  u32 id_low, id_high, tag, seed_low, seed_high;

  RowDraw(u64 seed, u64 id, u32 tag)
      : id_low(u32(id)),
        id_high(u32(id >> 32)),
        tag(tag),
        seed_low(u32(seed)),
        seed_high(u32(seed >> 32)) {}

  HR_INLINE PhiloxWords block(u32 number) const {
    return philox({{id_low, id_high, number, tag}}, seed_low, seed_high);
  }
};

// A word as a uniform float in [0, 1): its upper 24 bits, exact.
HR_INLINE float unit_float(u32 word) { return float(word >> 8) * 0x1p-24f; }

}  // namespace hedgerow
