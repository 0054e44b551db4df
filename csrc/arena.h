// Rows of one table, in chunks that never move, with a time stamp beside each row, and a count
// of uses where it is wanted.
#pragma once

#include <mutex>
#include <vector>

#include "bits.h"
#include "memory.h"

namespace hedgerow {

class Arena {
 public:
  // `counts_uses`: every row also has a count of its uses; other tables pay nothing for it.
  Arena(int stride, bool counts_uses);

  // `rows` consecutive row numbers that nobody has. Thread-safe. Throws OutOfMemory, or
  // std::length_error when row numbers run out.
  u32 take(u32 rows);

  // Takes back rows that were never used.
  void give_back(u32 first, u32 rows);

  // A row number may be used from the moment `take` returned it; chunks are never given back before
  // `clear`, so no lock is needed to address a row.
  HR_INLINE u8* row(u32 number) const { return view().row(number); }

  // What addresses a row, for loops that store: a copy of their own cannot have changed.
  struct View {
    u8* const* chunks;
    int shift;
    u32 mask;
    u64 stride;

    HR_INLINE u8* row(u32 number) const {
      return chunks[number >> shift] + u64(number & mask) * stride;
    }
  };
  HR_INLINE View view() const { return {chunks_, shift_, mask_, stride_}; }

  HR_INLINE i64* time(u32 number) const {
    return reinterpret_cast<i64*>(chunks_[number >> shift_] + times_from_) + (number & mask_);
  }

  bool counts_uses() const { return counts_uses_; }
  HR_INLINE u16* uses(u32 number) const {
    return reinterpret_cast<u16*>(chunks_[number >> shift_] + uses_from_) + (number & mask_);
  }

  u32 end() const;                                            // above every row number handed out
  u64 beside_bytes() const { return counts_uses_ ? 10 : 8; }  // of a row: time stamp, uses
  u64 taken_bytes() const;  // rows handed out, with what lies beside them

  // The caller has every shard locked, of both for `swap`. Only arenas of one stride swap.
  void clear();
  void swap(Arena& other);

 private:
  void add_chunk();

  u64 stride_;
  int shift_;  // rows of a chunk: 1 << shift_
  u32 mask_;
  u64 times_from_;  // byte of a chunk at which its time stamps start
  bool counts_uses_;
  u64 uses_from_;  // byte of a chunk at which its counts of uses start
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
