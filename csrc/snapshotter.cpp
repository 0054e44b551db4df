// Views of all rows: opened between writing calls, so that each call is in one as a whole or not at
// all, and read shard by shard.
#include "snapshotter.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kViewRows = 1024;  // rows copied under one hold of a shard's `writing`

}  // namespace

SnapshotStart Snapshotter::open(u64 aside_bytes, OtherWriters others) {
  drop_inherited();
  const CallScope scope;
  store_.arena().check();
  const std::lock_guard reading(snapshot_.reading);
  const std::lock_guard alone(store_.table_lock());
  if (snapshot_.is_open()) return {0, 0, 0};
  u64 rows = 0;
  for (const auto& shard : store_.shards()) rows += shard->index.size();
  snapshot_.open(store_.arena().end(), aside_bytes, others);
  return {snapshot_.ticket(), rows, store_.newest_time()};
}

void Snapshotter::close(u64 ticket) {
  const CallScope scope;
  const std::lock_guard reading(snapshot_.reading);
  const std::lock_guard alone(store_.table_lock());
  if (snapshot_.is_open() && snapshot_.ticket() == ticket) snapshot_.close();
}

void Snapshotter::drop_inherited() {
  if (snapshot_.inherited()) close(snapshot_.ticket());
}

void Snapshotter::before_write() {
  drop_inherited();
  snapshot_.wait();
}

// Copies the rows that writers put aside, and then live rows, shard by shard. Lookups go on
// meanwhile: rows change only under `writing`.
SnapshotStep Snapshotter::read(u64 ticket, u64 room, i64* ids, float* rows, float* states,
                               i64* times) {
  const CallScope scope;
  store_.arena().check();
  const std::lock_guard reading(snapshot_.reading);
  if (!snapshot_.is_open() || snapshot_.ticket() != ticket)
    throw std::runtime_error("snapshot " + std::to_string(ticket) + " is not open");
  snapshot_.read_by_this_thread();
  SnapshotStep step{0, false, 0};
  const auto emit = [&](u64 key, i64 time, const u8* row) {
    ids[step.rows] = i64(key);
    times[step.rows] = time;
    values_.copy(row, rows + step.rows * values_.dim(),
                 states + step.rows * values_.state_floats());
    ++step.rows;
  };
  read_aside(room, step, emit);
  while (step.rows < room && snapshot_.shard < kShards && read_live(room, step, emit)) {
  }
  read_aside(room, step, emit);
  step.done = snapshot_.shard == kShards && step.rows < room;
  return step;
}

void Snapshotter::read_aside(u64 room, SnapshotStep& step, const auto& emit) {
  for (int number = 0; number < kShards; ++number) {
    for (u64 left = 1; left != 0 && step.rows < room;) {
      const std::lock_guard writing(store_.shard(number).writing);
      snapshot_.pop(number, std::min(kViewRows, room - step.rows),
                    [&](const Snapshot::Aside::Entry& entry, const u8* row) {
                      emit(entry.key, entry.time, row);
                    });
      left = snapshot_.aside(number);
    }
  }
}

// False: there is no room for the next rows.
bool Snapshotter::read_live(u64 room, SnapshotStep& step, const auto& emit) {
  static thread_local std::vector<KeyRow> found;
  const int number = snapshot_.shard;
  Shard& shard = store_.shard(number);
  const TrimAfter trim(store_.arena());
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
  store_.each_fetched(found, [&](const KeyRow& entry) {
    if (!snapshot_.needs(entry.row)) return;
    emit(entry.key, store_.stamp_of(entry.row), store_.arena().row(entry.row));
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
