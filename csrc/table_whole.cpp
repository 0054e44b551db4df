// Verbs on all rows of a table at once: they leave, or change places with those of another.
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "pool.h"
#include "table.h"

namespace hedgerow {

// The caller holds `clearing_` alone. Readers are kept out meanwhile.
template <class Body>
void Table::with_all_shards(const Body& body) {
  for (auto& shard : shards_) shard->lock.lock();
  changes_.fetch_add(1);
  body();
  for (int i = 0; i < kShards; ++i) {
    views_[i] = shards_[i]->index.view();
    ++shards_[i]->version;
  }
  for (auto& shard : shards_) shard->lock.unlock();
  for (const auto& [_, touched] : touched_)
    if (touched->all_changes()) touched->mark_all();
}

// The keys that consumers collected go to the shards that they belong to now.
void Table::place_watchers() {
  for (const auto& [_, touched] : touched_) touched->place_by(SlotHash(slot_key()));
}

// False: there are rows. The caller uses the table alone.
bool Table::place_by(u64 slot_key) {
  const CallScope scope;
  const std::lock_guard alone(clearing_);
  if (size() != 0) return false;
  with_all_shards([&] {
    for (auto& shard : shards_) shard->index.place_by(SlotHash(slot_key));
    slot_key_.store(slot_key);
    place_watchers();
  });
  return true;
}

bool Table::clear() {
  drop_inherited();
  const CallScope scope;
  arena_.check();
  const std::lock_guard alone(clearing_);
  if (snapshot_.is_open()) return false;
  with_all_shards([&] {
    for (auto& shard : shards_) {
      shard->index.clear();
      shard->erased.clear();
      shard->oldest.clear();
    }
    near_.clear();
    arena_.clear();
  });
  Plan::of_this_thread().let_go();  // of calls on the many rows that there were
  return true;
}

bool Table::exchange(Table& other) {
  if (this == &other) return true;
  if (std::less<Table*>()(&other, this)) return other.exchange(*this);  // one order for all locks
  drop_inherited();
  other.drop_inherited();
  const CallScope scope;
  arena_.check();
  other.arena_.check();
  const std::lock_guard alone(clearing_), alone_there(other.clearing_);
  if (snapshot_.is_open() || other.snapshot_.is_open()) return false;
  if (!arena_.can_swap(other.arena_)) return false;
  with_all_shards([&] {
    other.with_all_shards([&] {
      for (int i = 0; i < kShards; ++i) {
        std::swap(shards_[i]->index, other.shards_[i]->index);
        std::swap(shards_[i]->erased, other.shards_[i]->erased);
        std::swap(shards_[i]->oldest, other.shards_[i]->oldest);
        shards_[i]->oldest.forget_walks();  // with the ages of the other table
        other.shards_[i]->oldest.forget_walks();
      }
      near_.swap(other.near_);
      arena_.swap(other.arena_);
      newest_time_.store(other.newest_time_.exchange(newest_time_.load()));
      slot_key_.store(other.slot_key_.exchange(slot_key_.load()));
      place_watchers();
      other.place_watchers();
    });
  });
  return true;
}

}  // namespace hedgerow
