// One of a table's 64 shards: its locks, its index and the rows its erased keys left.
#pragma once

#include <algorithm>
#include <limits>
#include <mutex>

#include "arena.h"
#include "index.h"
#include "rwlock.h"

namespace hedgerow {

// Rows of erased keys, to be given to new ones. The list runs through their time stamps: rows in a
// file need not come to memory for it.
class ErasedRows {
 public:
  u64 size() const { return size_; }

  u32 take(const Arena& arena) {
    const u32 row = newest_;
    newest_ = u32(*arena.time(row));
    --size_;
    return row;
  }

  void give(const Arena& arena, u32 row) {
    *arena.time(row) = newest_;
    newest_ = row;
    ++size_;
  }

  void clear() { *this = ErasedRows(); }

 private:
  u32 newest_ = kNoRow;
  u64 size_ = 0;
};

// No row of a shard is older than this: what an eviction by age need not look for. A write lowers
// it, and a walk over all rows of the shard finds it anew, counted as `Evictor::evict_older` does
// for the ages of that walk. Before the first walk it is the time of a write, which holds for any
// ages.
class OldestTime {
 public:
  static constexpr i64 kNoRow = std::numeric_limits<i64>::max();

  i64 least() const { return least_; }
  void saw(i64 time) {
    least_ = std::min(least_, time);
    since_ = std::min(since_, time);
  }
  void forget_walks() {
    if (walked_) least_ = since_ = 0;  // rows may be as old as can be
    walked_ = false;
  }
  void clear() { *this = OldestTime(); }

  void begin_walk() {
    since_ = stayed_ = kNoRow;
    walked_ = true;
  }
  void stays(i64 time) { stayed_ = std::min(stayed_, time); }
  void end_walk() { least_ = std::min(stayed_, since_); }

 private:
  i64 least_ = kNoRow;
  i64 since_ = kNoRow;   // of what was written since a walk began
  i64 stayed_ = kNoRow;  // of what it has left
  bool walked_ = false;
};

// Padded to its own lines: sharing one with a neighbour makes two threads slower than one.
//
// Whoever changes anything holds `writing`; whoever changes what readers see also holds `lock`
// exclusively. A larger index is built under `writing` alone, while readers go on.
struct alignas(128) Shard {
  Shard(double phase, const SlotHash& hash) : index(phase, hash) {}

  RwLock lock;
  std::mutex writing;
  u64 version = 0;   // counts inserts and erasures: row numbers found at a version hold at it
  u64 promised = 0;  // keys that running calls may still insert: the index has room for them
  Index index;
  ErasedRows erased;
  OldestTime oldest;
};

// Both locks of a shard.
class WriteLock {
 public:
  explicit WriteLock(Shard& shard) : shard_(shard) {
    shard_.writing.lock();
    shard_.lock.lock();
  }
  ~WriteLock() {
    shard_.lock.unlock();
    shard_.writing.unlock();
  }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  Shard& shard_;
};

}  // namespace hedgerow
