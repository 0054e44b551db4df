// One bucket of an index: a cache line of keys, row numbers and counts.
#pragma once

#include "bits.h"

namespace hedgerow {

inline constexpr u32 kNoRow = 0xffffffffu;

struct alignas(64) Bucket {
  static constexpr int kSlots = 5;  // 5 keys + 5 row numbers + one word of counts fill a line
  static constexpr u32 kPass = u32(1) << 8;
  static constexpr u32 kPassFull = 0xffffff00u;

  u64 key[kSlots];
  u32 row[kSlots];
  u32 counts;  // low 8 bits: slots in use; the rest: keys that passed through, saturating

  HR_INLINE u32 used() const { return counts & 0xffu; }
  HR_INLINE u32 passed() const { return counts & kPassFull; }

  // Bit i: slot i is in use and holds `wanted`.
  HR_INLINE u32 match(u64 wanted) const {
    u32 equal = 0;
    for (u32 i = 0; i < kSlots; ++i) equal |= u32(key[i] == wanted) << i;
    return equal & ((u32(1) << used()) - 1);
  }
};
static_assert(sizeof(Bucket) == 64);

// What a search needs of a shard's index. Kept apart from the shard, side by side with the others:
// 64 of them fill a kilobyte that stays in the nearest cache.
struct IndexView {
  const Bucket* buckets;
  u64 count;

  HR_INLINE const Bucket* home(u64 position) const {
    return buckets + u64((u128(position) * count) >> 64);
  }
  HR_INLINE const Bucket* next(const Bucket* at) const {
    return at + 1 == buckets + count ? buckets : at + 1;
  }
};

// The row of `key`, or kNoRow. Ends where nobody passed, or after one turn: a small index can be
// passed all the way round.
HR_INLINE u32 find_in(const IndexView& view, u64 key, u64 position) {
  const Bucket* const start = view.home(position);
  const Bucket* bucket = start;
  do {
    const u32 hit = bucket->match(key);
    if (hit != 0) return bucket->row[__builtin_ctz(hit)];
    if (bucket->passed() == 0) return kNoRow;
    bucket = view.next(bucket);
  } while (bucket != start);
  return kNoRow;
}

}  // namespace hedgerow
