// Rows of one width that lie in several arrays, numbered through.
#pragma once

#include <bit>
#include <span>

#include "scratch.h"

namespace hedgerow {

struct RowList {
  u8* rows;
  u64 n;
};

class RowLists {
 public:
  RowLists(std::span<const RowList> lists, u64 row_bytes)
      : starts_(lists.size() + 1), origins_(lists.size() + 1), row_bytes_(row_bytes) {
    u64 filled = 0;
    for (const RowList& list : lists) {  // empty ones have no number
      if (list.n == 0) continue;
      starts_[filled] = rows_;
      origins_[filled++] = u64(list.rows) - rows_ * row_bytes;
      rows_ += list.n;
    }
    starts_[filled] = rows_;
    // A few parts of the numbers for every list, so that most of them lie in one list.
    const u64 parts = std::bit_ceil(filled < 2 ? 1 : 64 * filled);
    while ((rows_ >> shift_) >= parts) ++shift_;
    first_list_ = Scratch<u32>((rows_ >> shift_) + 2);
    u32 list = 0;
    for (u64 part = 0; part < first_list_.size(); ++part) {
      while (list + 1 < filled && starts_[list + 1] <= part << shift_) ++list;
      first_list_[part] = list;
    }
  }

  u64 rows() const { return rows_; }

  HR_INLINE u8* row(u64 number) const {
    const u32* const first = first_list_.data() + (number >> shift_);
    u32 list = first[0];
    while (list < first[1] && starts_[list + 1] <= number) ++list;
    return reinterpret_cast<u8*>(origins_[list] + number * row_bytes_);
  }

  // Runs body(first row, rows) for the arrays that hold the numbers [from, to).
  template <class Body>
  void each_run(u64 from, u64 to, Body&& body) const {
    while (from < to) {
      u64 list = first_list_[from >> shift_];
      while (starts_[list + 1] <= from) ++list;
      const u64 end = starts_[list + 1] < to ? starts_[list + 1] : to;
      body(row(from), end - from);
      from = end;
    }
  }

 private:
  Scratch<u64> starts_;   // first number of each list, and the end
  Scratch<u64> origins_;  // where each list's row 0 of all would lie
  u64 row_bytes_;
  u64 rows_ = 0;
  int shift_ = 0;
  Scratch<u32> first_list_;  // by part of the numbers: the list of its first one
};

}  // namespace hedgerow
