// Searches in the store, keys that come and go, and changes of all rows at once.
#include "row_store.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "pool.h"
#include "probe.h"
#include "read_locks.h"

namespace hedgerow {

RowStore::RowStore(const RowLayout& layout, Marks marks, std::shared_ptr<RowFile> rows_in,
                   u64 initial_capacity, u64 slot_key)
    : row_bytes_(u64(layout.row_bytes)),
      marks_(marks),
      arena_(layout.stride, std::move(rows_in)),
      slot_key_(slot_key) {
  const CallScope scope;
  const SlotHash hash(slot_key);
  try {
    for (int i = 0; i < kShards; ++i) {
      shards_.push_back(std::make_unique<Shard>(double(i) / kShards, hash));
      views_[i] = shards_[u64(i)]->index.view();
      if (initial_capacity > kShards) make_room(i, initial_capacity / kShards);
    }
  } catch (...) {
    shards_.clear();  // within the scope, as in the destructor
    throw;
  }
}

RowStore::~RowStore() {
  const CallScope scope;  // memory is returned under a lock that a fork must not split
  shards_.clear();
  arena_.clear();
}

u64 RowStore::size() const {
  const CallScope scope;
  u64 rows = 0;
  for (int number = 0; number < kShards; ++number) {
    const ReadLocks hold(shards_, u64(1) << number);
    rows += shard(number).index.size();
  }
  return rows;
}

LoadStatistics RowStore::load() const {
  const CallScope scope;
  u64 rows = 0, slots = 0, longest = 0;
  for (int number = 0; number < kShards; ++number) {
    const ReadLocks hold(shards_, u64(1) << number);
    const Index& index = shard(number).index;
    rows += index.size();
    slots += index.bucket_count() * Bucket::kSlots;
    longest = std::max(longest, index.longest_search());
  }
  return {slots == 0 ? 0.0 : double(rows) / double(slots), longest};
}

void RowStore::saw_time(i64 time) {
  i64 seen = newest_time_.load();
  while (time > seen && !newest_time_.compare_exchange_weak(seen, time)) {
  }
}

template <u64 kGroup>
void RowStore::find(const SlotHash& hash, const i64* keys, u64 n, SearchIn where, u32* rows) const {
  const auto search = [&](const i64* some, u64 count, u32* found) {
    ProbeAhead<kGroup> probe(hash, views_, some, count, found);
    for (u64 i = 0; i < count; i += kGroup) probe.step();
  };
  if (where == SearchIn::index) return search(keys, n, rows);
  u32 left[kFindIds], found[kFindIds];
  i64 sparse[kFindIds];
  const u64 others = dense_ids_.find(keys, n, rows, left);
  for (u64 i = 0; i < others; ++i) sparse[i] = keys[left[i]];
  search(sparse, others, found);
  for (u64 i = 0; i < others; ++i) {
    rows[left[i]] = found[i];
    if (found[i] != kNoRow) dense_ids_.learn(u64(sparse[i]), found[i]);
  }
}

template void RowStore::find<kProbeGroup>(const SlotHash&, const i64*, u64, SearchIn, u32*) const;
template void RowStore::find<kLargeProbeGroup>(const SlotHash&, const i64*, u64, SearchIn,
                                               u32*) const;

void RowStore::make_room(int number, u64 rows) {
  Shard& shard = this->shard(number);
  if (shard.index.has_room(rows)) return;
  Index larger = shard.index.grown(rows);
  const std::lock_guard hold(shard.lock);
  shard.index = std::move(larger);
  views_[number] = shard.index.view();
}

void RowStore::clear() {
  for (auto& shard : shards_) {
    shard->index.clear();
    shard->erased.clear();
    shard->oldest.clear();
  }
  dense_ids_.clear();
  arena_.clear();
}

void RowStore::place_by(u64 slot_key) {
  for (auto& shard : shards_) shard->index.place_by(SlotHash(slot_key));
  slot_key_.store(slot_key);
}

void RowStore::swap(RowStore& other) {
  for (int i = 0; i < kShards; ++i) {
    Shard &here = shard(i), &there = other.shard(i);
    std::swap(here.index, there.index);
    std::swap(here.erased, there.erased);
    std::swap(here.oldest, there.oldest);
    here.oldest.forget_walks();  // with the ages of the other table
    there.oldest.forget_walks();
  }
  dense_ids_.swap(other.dense_ids_);
  arena_.swap(other.arena_);
  newest_time_.store(other.newest_time_.exchange(newest_time_.load()));
  slot_key_.store(other.slot_key_.exchange(slot_key_.load()));
}

}  // namespace hedgerow
