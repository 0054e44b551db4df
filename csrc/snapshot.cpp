// Opening and closing a view, copies aside, and the wait of writers when too many lie there.
#include "snapshot.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace hedgerow {
namespace {

constexpr auto kNap = std::chrono::milliseconds(1);  // less than a reader takes for a slice
constexpr int kNapsPerCall = 50;                     // of the function a waiting writer calls

std::atomic<void (*)()> while_waiting{nullptr};

const void* this_thread() {
  static thread_local char mark;
  return &mark;
}

}  // namespace

void set_while_waiting(void (*function)()) { while_waiting = function; }

Snapshot::Snapshot(u64 row_bytes) : row_bytes_(row_bytes) {}

void Snapshot::Aside::push(const Entry& entry, const u8* row, u64 row_bytes) {
  const u64 per_block = block_rows(row_bytes);
  if (rows_ == blocks_.size() * per_block)
    blocks_.push_back(std::make_unique_for_overwrite<u8[]>(per_block * stride(row_bytes)));
  u8* const to = blocks_.back().get() + rows_ % per_block * stride(row_bytes);
  std::memcpy(to, &entry, sizeof(entry));
  std::memcpy(to + sizeof(entry), row, row_bytes);
  ++rows_;
}

void Snapshot::open(u64 rows, u64 aside_bytes, OtherWriters others) {
  marks_ = Block(rows + 1, PageSize::small);
  rows_ = rows;
  shard = 0;
  position = 0;
  std::fill_n(watched_, kShards, true);
  held_bytes_ = aside_rows_ = waited_ns_ = 0;
  aside_bytes_ = aside_bytes;
  process_ = getpid();
  read_by_this_thread();
  ++ticket_;
  paused_ = others == OtherWriters::pause;
  open_ = true;
}

void Snapshot::close() {
  std::fill_n(watched_, kShards, false);
  for (Aside& aside : asides_) aside = Aside();
  marks_ = Block();
  rows_ = 0;
  paused_ = false;
  open_ = false;
  held_bytes_ = 0;
}

bool Snapshot::inherited() const { return is_open() && process_ != getpid(); }

SnapshotUse Snapshot::use() const { return {aside_rows_, double(waited_ns_.load()) * 1e-9}; }

void Snapshot::read_by_this_thread() { reader_ = this_thread(); }

bool Snapshot::is_mine() const { return reader_ == this_thread(); }

bool Snapshot::must_wait() const {
  return is_open() && !is_mine() && (paused_ || held_bytes_ > aside_bytes_);
}

void Snapshot::wait() {
  if (!must_wait()) return;
  const auto start = std::chrono::steady_clock::now();
  const auto count = [&] {
    waited_ns_ += u64(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  };
  try {
    for (int naps = 1; must_wait(); ++naps) {
      std::this_thread::sleep_for(kNap);
      if (naps % kNapsPerCall == 0 && while_waiting != nullptr) while_waiting.load()();
    }
  } catch (...) {
    count();
    throw;
  }
  count();
}

void Snapshot::copy_aside(int shard, u64 key, i64 time, u32 row, const u8* data) {
  asides_[shard].push({key, time}, data, row_bytes_);
  settle(row);
  held_bytes_.fetch_add(row_bytes_ + kEntryBytes, std::memory_order_relaxed);
  aside_rows_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace hedgerow
