// Which rows an eviction takes: the age a row may reach, and the order in which rows leave.
#pragma once

#include <algorithm>

#include "bits.h"

namespace hedgerow {

// Ages are given for every slot: bits 48 to 62 of an id.
inline constexpr u64 kAgeSlots = u64(1) << 15;
HR_INLINE u64 age_slot(u64 key) { return (key >> 48) & (kAgeSlots - 1); }

// A row's uses: 15 bits that count, and one that says whether it was used since a search for a cut
// last saw it. Such a row does not leave, however low its count.
inline constexpr u16 kMostUses = 0x7fff, kUsedSince = 0x8000;
HR_INLINE u16 counted_uses(u16 uses) { return uses & kMostUses; }
HR_INLINE u16 used_once_more(u16 uses) {
  return u16(std::min(counted_uses(uses) + 1, int(kMostUses))) | kUsedSince;
}

enum class LeaveBy { time, use };

// Rows with the lowest score leave first: the longest not updated, or the least used and among
// those the longest not updated. 48 bits of seconds are nine million years.
HR_INLINE u64 leave_score(LeaveBy order, i64 time, u16 uses) {
  if (order == LeaveBy::time) return u64(time);
  return (u64(counted_uses(uses)) << 48) | std::min(u64(time), (u64(1) << 48) - 1);
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
