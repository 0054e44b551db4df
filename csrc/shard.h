// One of a table's 64 shards: its lock, its index and the rows it may give to new keys.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "arena.h"
#include "index.h"
#include "rwlock.h"

namespace hedgerow {

// Row numbers a shard owns but no key uses: erased ones first, then fresh ones from the arena.
class FreeRows {
 public:
  u64 available() const { return erased_ + fresh_; }

  // Makes at least `rows` available. `live` is the shard's row count: small shards take small
  // steps.
  void reserve(Arena& arena, u64 rows, u64 live) {
    if (rows <= available()) return;
    const u64 least = std::clamp<u64>(4096 / arena.stride(), 1, 16);  // wide rows: one at a time
    const u64 step = std::clamp<u64>(live / 8, least, 256);
    const u32 wanted = u32(std::max(rows - available(), step));
    ranges_.reserve(ranges_.size() + 1);
    ranges_.push_back({arena.take(wanted), wanted});
    fresh_ += wanted;
  }

  u32 take(const Arena& arena) {
    if (erased_ != 0) {
      --erased_;
      const u32 row = newest_;
      std::memcpy(&newest_, arena.row(row), sizeof(newest_));
      return row;
    }
    --fresh_;
    Range& range = ranges_.back();
    const u32 row = range.first++;
    if (--range.count == 0) ranges_.pop_back();
    return row;
  }

  // The list of erased rows runs through the rows themselves.
  void give(const Arena& arena, u32 row) {
    std::memcpy(arena.row(row), &newest_, sizeof(newest_));
    newest_ = row;
    ++erased_;
  }

  // Returns fresh rows beyond `keep` to the arena, after a call that could not get all it needed.
  void trim(Arena& arena, u64 keep) {
    while (!ranges_.empty() && available() - ranges_.back().count >= keep) {
      arena.give_back(ranges_.back().first, ranges_.back().count);
      fresh_ -= ranges_.back().count;
      ranges_.pop_back();
    }
  }

  void clear() { *this = FreeRows(); }

 private:
  struct Range {
    u32 first, count;
  };
  u32 newest_ = kNoRow;
  u64 erased_ = 0;
  u64 fresh_ = 0;
  std::vector<Range> ranges_;
};

// Padded to its own lines: sharing one with a neighbour makes two threads slower than one.
struct alignas(128) Shard {
  explicit Shard(double phase) : index(phase) {}

  RwLock lock;
  u64 version = 0;   // counts inserts and erasures: row numbers found at a version hold at it
  u64 reserved = 0;  // rows promised to running calls
  Index index;
  FreeRows free_rows;
};

}  // namespace hedgerow
