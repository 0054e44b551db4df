// The table watched from outside: touched keys and consistent views of all rows.
#include <algorithm>
#include <shared_mutex>
#include <stdexcept>
#include <string>

#include "pool.h"
#include "table.h"

namespace hedgerow {
namespace {

constexpr u64 kViewRows = 1024;  // rows copied under one hold of a shard's `writing`

}  // namespace

// ---- touched keys. Consumers come and go between writing calls.

u64 Table::open_touched(u64 capacity, bool all_changes, bool forget) {
  const CallScope scope;
  const std::lock_guard alone(clearing_);
  touched_.emplace_back(++touched_opened_, std::make_unique<Touched>(capacity, all_changes, forget,
                                                                     SlotHash(slot_key())));
  return touched_opened_;
}

void Table::close_touched(u64 consumer) {
  const CallScope scope;
  const std::lock_guard alone(clearing_);
  std::erase_if(touched_, [&](const auto& each) { return each.first == consumer; });
}

Touched& Table::consumer(u64 number) const {
  for (const auto& [each, touched] : touched_)
    if (each == number) return *touched;
  throw std::invalid_argument("no consumer " + std::to_string(number) + " of touched keys is open");
}

TouchedStep Table::take_touched(u64 number, int shard, u64 room, i64* ids) {
  const CallScope scope;
  const std::shared_lock uncleared(clearing_);
  Touched& touched = consumer(number);
  TouchedStep step{0, shard, shard == 0 && touched.take_all(), 0, 0};
  while (step.shard < kShards && step.needed == 0) {
    const std::lock_guard writing(shards_[step.shard]->writing);
    touched.take(room, ids, step);
  }
  return step;
}

void Table::touch(u64 number, const i64* ids, u64 n) {
  const CallScope scope;
  const std::shared_lock uncleared(clearing_);
  Touched& touched = consumer(number);
  const SlotHash hash(slot_key());
  for (u64 i = 0; i < n; ++i) {
    const int shard = shard_of(hash(u64(ids[i])));
    const std::lock_guard writing(shards_[shard]->writing);
    touched.mark(shard, u64(ids[i]));
  }
}

void Table::touch_all(u64 number) {
  const CallScope scope;
  const std::shared_lock uncleared(clearing_);
  consumer(number).mark_all();
}

TouchedUse Table::touched_use(u64 number) const {
  const CallScope scope;
  const std::shared_lock uncleared(clearing_);
  const Touched& touched = consumer(number);
  return {touched.size(), touched.overflows()};
}

// ---- snapshots. A view begins between writing calls: each is in it as a whole or not at all.

SnapshotStart Table::open_snapshot(u64 aside_bytes, bool pause) {
  drop_inherited();
  const CallScope scope;
  arena_.check();
  const std::lock_guard reading(snapshot_.reading);
  const std::lock_guard alone(clearing_);
  if (snapshot_.is_open()) return {0, 0, 0};
  u64 rows = 0;
  for (const auto& shard : shards_) rows += shard->index.size();
  snapshot_.open(arena_.end(), aside_bytes, pause);
  return {snapshot_.ticket(), rows, newest_time_.load()};
}

void Table::close_snapshot(u64 ticket) {
  const CallScope scope;
  const std::lock_guard reading(snapshot_.reading);
  const std::lock_guard alone(clearing_);
  if (snapshot_.is_open() && snapshot_.ticket() == ticket) snapshot_.close();
}

// A view that was open when this process was forked: its reader is in the other process.
void Table::drop_inherited() {
  if (snapshot_.inherited()) close_snapshot(snapshot_.ticket());
}

void Table::before_write() {
  drop_inherited();
  snapshot_.wait();
}

// Copies aside what lies there and then live rows, shard by shard. Lookups go on meanwhile: nobody
// changes rows without `writing`.
SnapshotStep Table::read_snapshot(u64 ticket, u64 room, i64* ids, float* rows, float* states,
                                  i64* times) {
  const CallScope scope;
  arena_.check();
  const std::lock_guard reading(snapshot_.reading);
  if (!snapshot_.is_open() || snapshot_.ticket() != ticket)
    throw std::runtime_error("snapshot " + std::to_string(ticket) + " is not open");
  snapshot_.read_by_this_thread();
  SnapshotStep step{0, false, 0};
  const auto emit = [&](u64 key, i64 time, const u8* row) {
    ids[step.rows] = i64(key);
    times[step.rows] = time;
    copy_row(row, rows + step.rows * u64(layout_.dim),
             states + step.rows * u64(layout_.state_floats));
    ++step.rows;
  };
  read_aside(room, step, emit);
  while (step.rows < room && snapshot_.shard < kShards && read_live(room, step, emit)) {
  }
  read_aside(room, step, emit);
  step.done = snapshot_.shard == kShards && step.rows < room;
  return step;
}

void Table::read_aside(u64 room, SnapshotStep& step, const auto& emit) {
  for (int number = 0; number < kShards; ++number) {
    for (u64 left = 1; left != 0 && step.rows < room;) {
      const std::lock_guard writing(shards_[number]->writing);
      snapshot_.pop(number, std::min(kViewRows, room - step.rows),
                    [&](const Snapshot::Aside::Entry& entry, const u8* row) {
                      emit(entry.key, entry.time, row);
                    });
      left = snapshot_.aside(number);
    }
  }
}

// False: there is no room for the next rows.
bool Table::read_live(u64 room, SnapshotStep& step, const auto& emit) {
  static thread_local std::vector<KeyRow> found;
  const int number = snapshot_.shard;
  Shard& shard = *shards_[number];
  const TrimAfter trim(arena_);
  const std::lock_guard writing(shard.writing);
  found.clear();
  bool shard_done = false;
  const u64 left = room - step.rows;
  const u64 next =
      shard.index.scan(snapshot_.position, std::min(kViewRows, left), found, shard_done);
  if (found.size() > left) {  // one home bucket with more keys than there is room
    if (step.rows == 0) step.needed = found.size();
    return false;
  }
  each_fetched(found, [&](const KeyRow& entry) {
    if (!snapshot_.needs(entry.row)) return;
    emit(entry.key, stamp_of(entry.row), arena_.row(entry.row));
    snapshot_.settle(entry.row);
  });
  snapshot_.position = next;
  if (!shard_done) return true;
  snapshot_.finish(number);
  snapshot_.position = 0;
  ++snapshot_.shard;
  return true;
}

}  // namespace hedgerow
