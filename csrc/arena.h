// Rows of one table, in chunks that never move, with a time stamp beside each row.
#pragma once

#include <mutex>
#include <vector>

#include "bits.h"
#include "memory.h"

namespace hedgerow {

class Arena {
 public:
  explicit Arena(int stride);

  // `rows` consecutive row numbers that nobody has. Thread-safe. Throws OutOfMemory, or
  // std::length_error when row numbers run out.
  u32 take(u32 rows);

  // Takes back rows that were never used.
  void give_back(u32 first, u32 rows);

  // A row number may be used from the moment `take` returned it; chunks are never given back before
  // `clear`, so no lock is needed to address a row.
  HR_INLINE u8* row(u32 number) const {
    return chunks_[number >> shift_] + u64(number & mask_) * stride_;
  }
  HR_INLINE i64* time(u32 number) const {
    return reinterpret_cast<i64*>(chunks_[number >> shift_] + times_from_) + (number & mask_);
  }

  u32 end() const;          // above every row number handed out
  u64 taken_bytes() const;  // rows handed out, time stamps included

  void clear();  // the caller has every shard locked

 private:
  void add_chunk();

  u64 stride_;
  int shift_;  // rows of a chunk: 1 << shift_
  u32 mask_;
  u64 times_from_;  // byte of a chunk at which its time stamps start
  Block directory_;
  u8** chunks_;  // in `directory_`: fixed in place, so readers need no lock while it fills
  std::vector<Block> blocks_;
  Charge charge_;  // of the rows handed out
  struct Range {
    u32 first, count;
  };
  std::vector<Range> spare_;  // given back
  u64 taken_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace hedgerow
