// Rows of one table, in chunks that never move, with a stamp beside each row (`evict.h` says what
// it holds). Chunks lie in memory or in a file.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "bits.h"
#include "memory.h"
#include "row_file.h"

namespace hedgerow {

class Arena {
 public:
  // `file`: where the chunks lie; null: in memory.
  explicit Arena(int stride, std::shared_ptr<RowFile> file = nullptr);

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
    RowFile* file;
    int shift;
    u32 mask;
    u64 stride;

    HR_INLINE u8* row(u32 number) const {
      return bytes(number, u64(number & mask) * stride, stride);
    }
    HR_INLINE u8* bytes(u32 number, u64 from, u64 size) const {
      const u32 chunk = number >> shift;
      if (file != nullptr) [[unlikely]]
        file->use(chunk, from, size);
      return chunks[chunk] + from;
    }
  };
  HR_INLINE View view() const { return {chunks_, file_.get(), shift_, mask_, stride_}; }

  HR_INLINE i64* time(u32 number) const {
    return reinterpret_cast<i64*>(view().bytes(number, times_from_ + u64(number & mask_) * 8, 8));
  }

  u32 end() const;                        // above every row number handed out
  static constexpr u64 kBesideBytes = 8;  // of a row: its stamp
  u64 taken_bytes() const;                // rows handed out, with what lies beside them
  u64 heap_bytes() const;                 // of the chunks that lie among huge pages
  u64 ragged_bytes() const;               // of pages in memory, where no row was handed out yet

  // At the start of a call: throws UnusableRows.
  void check() const {
    if (file_ != nullptr) file_->check();
  }
  bool in_file() const { return file_ != nullptr; }

  // The caller has every shard locked, of both for `swap`, and has asked.
  bool can_swap(const Arena& other) const;
  void clear();
  void swap(Arena& other);

 private:
  void add_chunk();
  u64 chunk_bytes() const { return times_from_ + (kBesideBytes << shift_); }
  u64 chargeable(u64 bytes) const;
  void count_in(u32 rows);  // throws OutOfMemory; nothing is counted then
  void count_out(u32 rows);

  u64 stride_;
  int shift_;  // rows of a chunk: 1 << shift_
  u32 mask_;
  u64 times_from_;  // byte of a chunk at which its time stamps start
  Block directory_;
  u8** chunks_;  // in `directory_`: fixed in place, so readers need no lock while it fills
  const std::shared_ptr<RowFile> file_;  // two that swap exchange what is in their files
  std::vector<Block> blocks_;            // of chunks in memory
  u64 chunk_count_ = 0;
  Charge charge_;       // of the rows handed out, as far as they may be in memory
  u64 held_bytes_ = 0;  // of all of them
  struct Range {
    u32 first, count;
  };
  std::vector<Range> spare_;  // given back
  u64 taken_ = 0;
  mutable std::mutex mutex_;
  friend class TrimAfter;
};

// At its end, memory that a file's budget has no room for is given back. Made before the locks
// under which rows are used, so that it waits for the disk without them.
class TrimAfter {
 public:
  explicit TrimAfter(const Arena& arena) : file_(arena.file_.get()) {}
  ~TrimAfter() {
    if (file_ != nullptr) file_->trim();
  }
  TrimAfter(const TrimAfter&) = delete;
  TrimAfter& operator=(const TrimAfter&) = delete;

 private:
  RowFile* const file_;
};

}  // namespace hedgerow
