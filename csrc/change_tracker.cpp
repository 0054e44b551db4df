// Consumers of the change feed: opened, closed, and given their keys.
#include "change_tracker.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace hedgerow {

u64 ChangeTracker::open(u64 capacity, Watched watched, OnOverflow on_overflow) {
  const CallScope scope;
  const std::lock_guard alone(store_.table_lock());
  consumers_.emplace_back(
      ++opened_, std::make_unique<Touched>(capacity, watched, on_overflow, store_.slot_hash()));
  return opened_;
}

void ChangeTracker::close(u64 number) {
  const CallScope scope;
  const std::lock_guard alone(store_.table_lock());
  std::erase_if(consumers_, [&](const auto& each) { return each.first == number; });
}

Touched& ChangeTracker::consumer(u64 number) const {
  for (const auto& [each, touched] : consumers_)
    if (each == number) return *touched;
  throw std::invalid_argument("no consumer " + std::to_string(number) + " of touched keys is open");
}

TouchedStep ChangeTracker::take(u64 number, int shard, u64 room, i64* ids) {
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());
  Touched& touched = consumer(number);
  if (shard < 0) throw std::invalid_argument("shard " + std::to_string(shard) + " is below 0");
  TouchedStep step{0, shard, shard == 0 && touched.take_all(), 0, 0};
  while (step.shard < kShards && step.needed == 0) {
    const std::lock_guard writing(store_.shard(step.shard).writing);
    touched.take(room, ids, step);
  }
  return step;
}

void ChangeTracker::touch(u64 number, const i64* ids, u64 n) {
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());
  Touched& touched = consumer(number);
  const SlotHash hash = store_.slot_hash();
  for (u64 i = 0; i < n; ++i) {
    const int shard = shard_of(hash(u64(ids[i])));
    const std::lock_guard writing(store_.shard(shard).writing);
    touched.mark(shard, u64(ids[i]));
  }
}

void ChangeTracker::touch_all(u64 number) {
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());
  consumer(number).mark_all();
}

TouchedUse ChangeTracker::use(u64 number) const {
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());
  const Touched& touched = consumer(number);
  return {touched.size(), touched.overflows()};
}

u64 ChangeTracker::bytes(int shard) const {
  u64 total = 0;
  for (const auto& [_, touched] : consumers_) total += touched->bytes(shard);
  return total;
}

void ChangeTracker::mark_all() {
  for (const auto& [_, touched] : consumers_)
    if (touched->sees_every_change()) touched->mark_all();
}

void ChangeTracker::place_by(const SlotHash& hash) {
  for (const auto& [_, touched] : consumers_) touched->place_by(hash);
}

}  // namespace hedgerow
