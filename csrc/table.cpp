// A table put together from its parts, and what concerns all of its rows at once.
#include "table.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <shared_mutex>

#include "buffer.h"
#include "huge_heap.h"
#include "plan.h"
#include "pool.h"
#include "read_locks.h"

namespace hedgerow {

Table::Table(const std::vector<SegmentSpec>& segments, RowForm form, ZeroRows zero_rows, u64 seed,
             u64 initial_capacity, Marks marks, std::shared_ptr<Admission> admission,
             std::shared_ptr<RowFile> rows_in, u64 slot_key)
    : values_(segments, form, zero_rows, seed),
      store_(values_.layout(), marks, std::move(rows_in), initial_capacity, slot_key),
      tracker_(store_),
      snapshots_(store_, values_),
      allocator_(store_, tracker_, snapshots_),
      admission_(std::move(admission)),
      reader_(store_, values_),
      writer_(store_, values_, allocator_, admission_, tracker_, snapshots_),
      evictor_(store_, allocator_, snapshots_) {}

MemoryUse Table::memory() const {
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());
  const Arena& arena = store_.arena();
  MemoryUse use{0, 0, 0, arena.ragged_bytes()};
  for (int number = 0; number < kShards; ++number) {
    const Shard& shard = store_.shard(number);
    const std::lock_guard writing(store_.shard(number).writing);
    const ReadLocks hold(store_.shards(), u64(1) << number);
    use.index_bytes += shard.index.bytes();
    use.row_bytes += shard.index.size() * (u64(layout().row_bytes) + Arena::kBesideBytes);
    use.other_bytes += tracker_.bytes(number);
  }
  const double heap_bytes = double(arena.heap_bytes() + use.index_bytes);
  use.other_bytes += u64(HugeHeap::process().idle_share() * heap_bytes) + snapshots_.bytes();
  // Working memory of threads serves all tables: each counts its share.
  const double share = heap_bytes / std::max(1.0, double(memory_used()));
  use.other_bytes += u64(double(working_bytes.load()) * std::min(1.0, share));
  use.index_bytes += store_.dense_id_bytes();
  const u64 taken = arena.taken_bytes();
  use.slack_bytes = taken > use.row_bytes ? taken - use.row_bytes : 0;
  return use;
}

// The caller holds the table's lock alone.
template <class Body>
void Table::change_all_rows(const Body& body) {
  store_.with_all_shards(body);
  tracker_.mark_all();
}

bool Table::place_by(u64 slot_key) {
  const CallScope scope;
  const std::lock_guard alone(store_.table_lock());
  if (size() != 0) return false;
  change_all_rows([&] {
    store_.place_by(slot_key);
    tracker_.place_by(store_.slot_hash());
  });
  return true;
}

bool Table::clear() {
  snapshots_.drop_inherited();
  const CallScope scope;
  store_.arena().check();
  const std::lock_guard alone(store_.table_lock());
  if (snapshots_.is_open()) return false;
  change_all_rows([&] { store_.clear(); });
  Plan::of_this_thread().let_go();  // of calls on the many rows that there were
  return true;
}

bool Table::exchange(Table& other) {
  if (this == &other) return true;
  if (std::less<Table*>()(&other, this)) return other.exchange(*this);  // one order for all locks
  snapshots_.drop_inherited();
  other.snapshots_.drop_inherited();
  const CallScope scope;
  store_.arena().check();
  other.store_.arena().check();
  const std::lock_guard alone(store_.table_lock()), alone_there(other.store_.table_lock());
  if (snapshots_.is_open() || other.snapshots_.is_open()) return false;
  if (!store_.can_swap(other.store_)) return false;
  change_all_rows([&] {
    other.change_all_rows([&] {
      store_.swap(other.store_);
      tracker_.place_by(store_.slot_hash());
      other.tracker_.place_by(other.store_.slot_hash());
    });
  });
  return true;
}

}  // namespace hedgerow
