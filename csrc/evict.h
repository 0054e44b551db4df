// Which rows an eviction takes: the age a row may reach, and the order in which rows leave.
#pragma once

#include <algorithm>
#include <bit>

#include "bits.h"

namespace hedgerow {

// Ages are given for every slot: bits 48 to 62 of an id.
inline constexpr u64 kAgeSlots = u64(1) << 15;
HR_INLINE u64 age_slot(u64 key) { return (key >> 48) & (kAgeSlots - 1); }

// What the stamp of a row holds, which callers give with every write:
// - none: the time in seconds;
// - turn: the time in seconds, and below it as the mark the number of the writing call;
// - uses: the time in seconds, and below it as the mark the weight of all uses of the row.
// A mark has 31 bits, 0 is none, and numbers go on from 1 behind the last one.
enum class Marks { none, turn, uses };

inline constexpr int kMarkBits = 31;
inline constexpr u64 kMark = (u64(1) << kMarkBits) - 1;
HR_INLINE u64 mark_of(i64 stamp) { return u64(stamp) & kMark; }
HR_INLINE u64 seconds_of(i64 stamp) { return u64(stamp) >> kMarkBits; }
HR_INLINE i64 stamp_with(i64 stamp, u64 mark) { return i64((u64(stamp) & ~kMark) | mark); }

// Where a mark stands among all, from the oldest up to `top`, the largest that there can be.
HR_INLINE u64 place_of(u64 mark, u64 top) { return mark == 0 ? 0 : (mark - top - 1) & kMark; }

// The weight of uses: a number with an exponent of 17 bits over a fraction of 14. A use weighs
// twice as much as one that was a half-life before it, so weights are added up and never fade: what
// fades is how they compare with new ones. Exponents go on from 0 behind the last one; of two
// weights the one that is at most `kAhead` ahead is the larger.
inline constexpr int kFractionBits = 14;
inline constexpr u64 kOne = u64(1) << kFractionBits;
inline constexpr u64 kAhead = u64(32) << kFractionBits;

HR_INLINE u64 weights_added(u64 one, u64 other) {
  if (one == 0 || other == 0) return one | other;
  const bool ahead = ((one - other) & kMark) <= kAhead;
  const u64 larger = ahead ? one : other, smaller = ahead ? other : one;
  const u64 apart =
      ((larger >> kFractionBits) - (smaller >> kFractionBits)) & (kMark >> kFractionBits);
  if (apart > kFractionBits + 1) return larger;
  const u64 half = (u64(1) << apart) >> 1;
  u64 exponent = larger >> kFractionBits;
  u64 sum = kOne + (larger & (kOne - 1)) + ((kOne + (smaller & (kOne - 1)) + half) >> apart);
  if (sum >= 2 * kOne) {
    sum = (sum + 1) >> 1;
    ++exponent;
  }
  return std::max(u64(1), ((exponent << kFractionBits) | (sum & (kOne - 1))) & kMark);
}

// The weight of `n` uses of this weight.
HR_INLINE u64 weight_times(u64 one, u64 n) {
  if (one == 0 || n <= 1) return one;
  u64 exponent = one >> kFractionBits;
  u64 total = (kOne + (one & (kOne - 1))) * std::min(n, (u64(1) << 32) - 1);
  const int apart = std::bit_width(total) - 1 - kFractionBits;
  total = (total + ((u64(1) << apart) >> 1)) >> apart;
  exponent += u64(apart);
  if (total == 2 * kOne) {
    total = kOne;
    ++exponent;
  }
  return std::max(u64(1), ((exponent << kFractionBits) | (total & (kOne - 1))) & kMark);
}

// In a table of uses, a bit of a row's stamp that callers never see: the row was used since a
// search for a cut last saw it. Such a row does not leave, however small its weight.
inline constexpr i64 kUsedSince = i64(u64(1) << 63);
HR_INLINE i64 shown(i64 stamp) { return stamp & ~kUsedSince; }

enum class LeaveBy { time, use };

// Rows with the lowest score leave first: the longest not updated, or the least used and among
// those the longest not updated.
HR_INLINE u64 leave_score(Marks marks, i64 stamp, u64 top) {
  if (marks == Marks::none) return u64(stamp);
  const u64 place = place_of(mark_of(stamp), top);
  if (marks == Marks::turn) return (seconds_of(stamp) << kMarkBits) | place;
  return (place << 32) | seconds_of(shown(stamp));
}

// Equal scores leave in the order of their ids, so that the outcome is one for any thread count.
HR_INLINE u128 leave_rank(u64 score, u64 key) {
  return (u128(score) << 64) | (key ^ (u64(1) << 63));
}

// The last row that must leave for a table to hold no more than its budget.
struct Cut {
  u64 excess;  // rows that must leave; 0: none, and the rest means nothing
  u64 score;
  i64 key;
};

}  // namespace hedgerow
