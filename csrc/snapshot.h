// One consistent view of a table's rows, read while writers go on.
//
// A mark a row says that the view needs the live row no more: it was read, copied aside, or born
// later. A writer that is the first to change or erase a row the view still needs copies it aside;
// a key born meanwhile marks its row. So readers of the view give the live rows without a mark, and
// what lies aside. A mark takes a byte: bits of rows of several shards would share words, and their
// atomic change takes longer than the copy of a row.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.h"
#include "shard_of.h"

namespace hedgerow {

// Called now and then by a writer that waits; may throw, which ends the call before it changed
// anything.
void set_while_waiting(void (*function)());

struct SnapshotUse {
  u64 aside_rows;   // copied so far
  double waited_s;  // by writers, in all
};

// What writers of other threads do from the moment a snapshot opens: they go on, or they wait until
// they are resumed.
enum class OtherWriters { go_on, pause };

class Snapshot {
 public:
  explicit Snapshot(u64 row_bytes);

  // Rows that lie aside, newest first.
  class Aside {
   public:
    struct Entry {
      u64 key;
      i64 time;
    };
    void push(const Entry& entry, const u8* row, u64 row_bytes);  // throws std::bad_alloc
    template <class Use>                                          // use(entry, row)
    u64 pop(u64 most, u64 row_bytes, Use use);
    u64 size() const { return rows_; }

   private:
    static u64 stride(u64 row_bytes) { return sizeof(Entry) + (row_bytes + 15) / 16 * 16; }
    static u64 block_rows(u64 row_bytes);
    std::vector<std::unique_ptr<u8[]>> blocks_;
    u64 rows_ = 0;
  };

  // Opened and closed while nobody writes or reads it.
  void open(u64 rows, u64 aside_bytes, OtherWriters others);
  void close();

  bool is_open() const { return open_.load(std::memory_order_acquire); }
  bool inherited() const;  // opened by the process that this one was forked from
  u64 ticket() const { return ticket_; }
  SnapshotUse use() const;
  u64 bytes() const { return marks_.bytes() + held_bytes_.load(); }

  // Writers wait, without any lock, while they are paused or too much lies aside; the thread that
  // opened or read it last does not: nobody else would end its wait.
  void wait();
  bool is_mine() const;  // this thread is that one
  bool pauses_me() const { return paused_.load(std::memory_order_acquire) && !is_mine(); }
  void resume() { paused_.store(false, std::memory_order_release); }

  // The rest is called with the shard's `writing` held.
  bool watches(int shard) const { return watched_[shard]; }
  bool needs(u32 row) const { return row < rows_ && marks_.data()[row] == 0; }
  void settle(u32 row) {  // the live row is needed no more
    if (row < rows_) marks_.data()[row] = 1;
  }
  void keep(int shard, u64 key, i64 time, u32 row, const u8* data) {
    if (needs(row)) copy_aside(shard, key, time, row, data);
  }
  void finish(int shard) { watched_[shard] = false; }
  template <class Use>
  void pop(int shard, u64 most, Use use) {
    held_bytes_.fetch_sub(asides_[shard].pop(most, row_bytes_, use) * (row_bytes_ + kEntryBytes));
  }
  u64 aside(int shard) const { return asides_[shard].size(); }

  // The reader's place, under `reading`.
  std::mutex reading;
  int shard = 0;  // kShards: all live rows were read
  u64 position = 0;
  void read_by_this_thread();

 private:
  static constexpr u64 kEntryBytes = sizeof(Aside::Entry);
  bool must_wait() const;
  void copy_aside(int shard, u64 key, i64 time, u32 row, const u8* data);

  const u64 row_bytes_;
  std::atomic<bool> open_{false}, paused_{false};
  std::atomic<const void*> reader_{nullptr};  // a mark of the thread
  std::atomic<u64> held_bytes_{0}, aside_rows_{0}, waited_ns_{0};
  std::atomic<u64> ticket_{0}, aside_bytes_{0};
  std::atomic<int> process_{0};
  Block marks_;
  u64 rows_ = 0;  // that have a mark; later ones are not needed
  bool watched_[kShards] = {};
  Aside asides_[kShards];
};

inline u64 Snapshot::Aside::block_rows(u64 row_bytes) {
  constexpr u64 kBlockBytes = u64(16) << 10;
  return std::max(u64(1), kBlockBytes / stride(row_bytes));
}

template <class Use>
u64 Snapshot::Aside::pop(u64 most, u64 row_bytes, Use use) {
  const u64 per_block = block_rows(row_bytes), popped = std::min(most, rows_);
  for (u64 i = 0; i < popped; ++i) {
    const u64 at = --rows_ % per_block;
    const u8* const from = blocks_.back().get() + at * stride(row_bytes);
    use(*reinterpret_cast<const Entry*>(from), from + sizeof(Entry));
    if (at == 0) blocks_.pop_back();
  }
  return popped;
}

}  // namespace hedgerow
