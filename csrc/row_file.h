// Rows of one table in a file: mapped chunk by chunk, with at most a budget of them in memory.
//
// Every access marks the pages it touches. Once more pages are in memory than the budget has room
// for, a hand goes round the file, as in the clock algorithm: pages used since it came by last
// stay, others are written and given back. The system loses nothing by that: a page that is used
// again is read again.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.h"

namespace hedgerow {

// The file cannot grow: its disk is full, or a limit on files is reached.
struct NoRoomInFile : OutOfMemory {
  std::string folder, reason;
  NoRoomInFile(u64 wanted, std::string folder, std::string reason)
      : OutOfMemory(wanted, memory_used(), memory_limit()),
        folder(std::move(folder)),
        reason(std::move(reason)) {}
};

// Rows that this process may not or cannot use any more.
struct UnusableRows : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class RowFile {
 public:
  // Takes over the open, empty file `fd`, which has no name; `folder` is for messages.
  RowFile(int fd, std::string folder, u64 resident_bytes);
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  // For one arena, once: throws std::invalid_argument at the second.
  void start(u64 chunk_bytes, u64 most_chunks);
  u8* add_chunk();  // zero-filled; throws NoRoomInFile, and the file is as before
  u64 budget_bytes() const { return budget_bytes_; }

  // The caller keeps everybody from the rows, of both for `swap`. Files of one chunk size and one
  // budget swap.
  void clear();
  void swap(RowFile& other);

  // Throws UnusableRows in a forked child, which would share the rows with its parent, and after a
  // failed write.
  void check() const;

  // Called before bytes of a chunk are read or written.
  HR_INLINE void use(u64 chunk, u64 from, u64 bytes) {
    std::atomic<u8>* const marks = marks_[chunk];
    const u64 last = (from + bytes - 1) >> page_shift_;
    for (u64 page = from >> page_shift_; page <= last; ++page)
      if (marks[page].load(std::memory_order_relaxed) != kUsed) [[unlikely]]
        arrive(chunk, page);
  }

  // Gives pages back if too many are in memory. No lock of the table is held: it waits for the
  // disk.
  void trim() {
    if (resident_pages_.load(std::memory_order_relaxed) > budget_pages_) [[unlikely]]
      give_back();
  }

  u64 file_bytes() const;
  u64 resident_bytes() const { return resident_pages_.load() << page_shift_; }
  u64 measured_bytes() const;  // in memory, as the system says; looks at every page

 private:
  enum Mark : u8 { kAway, kHere, kUsed };  // kUsed: since the hand came by

  void arrive(u64 chunk, u64 page);
  void give_back();
  u64 sweep(u64 chunk, u64 from, u64 most);
  bool write_pages(u64 chunk, u64 first, u64 end);
  void drop_pages(u64 chunk, u64 first, u64 end);
  bool is_mine() const;
  u64 place(u64 chunk, u64 page) const { return chunk * chunk_bytes_ + (page << page_shift_); }

  int fd_;
  std::string folder_;
  const u64 budget_bytes_;
  const int page_shift_;
  const u64 budget_pages_;
  bool writes_parts_;  // see `write_range`
  const int process_;
  u64 chunk_bytes_ = 0, chunk_pages_ = 0;
  Block directory_;
  std::atomic<u8>** marks_ = nullptr;  // in `directory_`: fixed in place, as the arena's
  std::atomic<u64> resident_pages_{0};
  std::atomic<int> failure_{0};  // errno of a write
  mutable std::mutex mutex_;     // guards what follows: who gives back, grows or empties
  std::vector<u8*> chunks_;
  std::vector<std::unique_ptr<std::atomic<u8>[]>> chunk_marks_;
  u64 hand_ = 0;  // page to be looked at next
};

}  // namespace hedgerow
