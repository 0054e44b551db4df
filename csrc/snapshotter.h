// Consistent views of all rows of a table, one at a time, read while writers go on.
#pragma once

#include "row_store.h"
#include "row_values.h"
#include "snapshot.h"

namespace hedgerow {

struct SnapshotStart {
  u64 ticket;  // 0: another one is open
  u64 rows;
  i64 newest_time;
};

struct SnapshotStep {
  u64 rows;  // written
  bool done;
  u64 needed;  // not 0: the room was too small for the next rows, which need this much
};

class Snapshotter {
 public:
  Snapshotter(RowStore& store, const RowValues& values)
      : store_(store), values_(values), snapshot_(u64(values.layout().row_bytes)) {}

  // ---- for the reader of a view

  // A view of all rows as they are when `open` returns. Each of its rows is given once. Writers
  // whose old rows fill `aside_bytes` wait for the reader at the start of their next call.
  SnapshotStart open(u64 aside_bytes, OtherWriters others);
  void resume_writers() { snapshot_.resume(); }
  SnapshotStep read(u64 ticket, u64 room, i64* ids, float* rows, float* states, i64* times);
  SnapshotUse use() const { return snapshot_.use(); }
  void close(u64 ticket);

  bool is_open() const { return snapshot_.is_open(); }
  // Whether this thread reads one: writes of other threads wait for it, those of its own do not.
  bool is_read_by_this_thread() const { return snapshot_.is_open() && snapshot_.is_mine(); }
  u64 bytes() const { return snapshot_.bytes(); }

  // ---- for calls that write

  // Waits where the reader asks for it. The caller holds no lock.
  void before_write();
  bool pauses_this_thread() const { return snapshot_.pauses_me(); }
  // Closes a view that was open when this process was forked: its reader is in the other process.
  void drop_inherited();

  // The rest is called with both locks of the shard held.
  bool watches(int shard) const { return snapshot_.watches(shard); }
  // A row is about to be changed or erased.
  void keep(int shard, u64 key, u32 row) {
    if (watches(shard))
      snapshot_.keep(shard, key, store_.stamp_of(row), row, store_.arena().row(row));
  }
  // A row got a key after the view was opened.
  void leave_out(int shard, u32 row) {
    if (watches(shard)) snapshot_.settle(row);
  }

 private:
  void read_aside(u64 room, SnapshotStep& step, const auto& emit);
  bool read_live(u64 room, SnapshotStep& step, const auto& emit);

  RowStore& store_;
  const RowValues& values_;
  Snapshot snapshot_;
};

}  // namespace hedgerow
