// The embedding table of one process: every verb on rows, safe from many threads.
//
// A table is made of parts that share its rows: a store (shards, index, arena), a reader, a writer
// with its admission gate and row allocator, a change tracker, a snapshotter and an evictor. Each
// verb belongs to one part, whose header says what it does. What concerns all rows at once is done
// here.
//
// Readers and writers hold the lock of a shard for a thousand rows or two; a larger index is built
// while readers go on.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "admission_gate.h"
#include "change_tracker.h"
#include "evictor.h"
#include "row_allocator.h"
#include "row_reader.h"
#include "row_store.h"
#include "row_values.h"
#include "row_writer.h"
#include "snapshotter.h"

namespace hedgerow {

struct MemoryUse {
  u64 index_bytes;  // the index's buckets
  u64 row_bytes;    // live rows with their stamps
  u64 slack_bytes;  // rows taken but not live, and padding
  u64 other_bytes;  // parts of pages, changed keys, an open snapshot, working memory of threads
};

class Table {
 public:
  Table(const std::vector<SegmentSpec>& segments, RowForm form, ZeroRows zero_rows, u64 seed,
        u64 initial_capacity, Marks marks = Marks::none,
        std::shared_ptr<Admission> admission = nullptr, std::shared_ptr<RowFile> rows_in = nullptr,
        u64 slot_key = 0);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const RowLayout& layout() const { return values_.layout(); }
  // What places keys in the index; see SlotHash. No result depends on it but the order of scans.
  u64 slot_key() const { return store_.slot_key(); }

  // ---- RowReader

  void lookup(const i64* ids, u64 n, Missing missing, i64 step, float* out, OutputMemory memory,
              u8* found = nullptr, u32* rows = nullptr) const {
    reader_.lookup({ids, n, missing, step}, {out, memory, found, rows});
  }
  void contains(const i64* ids, u64 n, u8* out) const { reader_.contains(ids, n, out); }
  void entries(const i64* ids, u64 n, u8* found, float* rows, float* states, i64* times) const {
    reader_.entries(ids, n, found, rows, states, times);
  }
  ScanStep scan(u64 cursor, u64 room, i64* ids, float* rows, float* states, i64* times) const {
    return reader_.scan(cursor, room, ids, rows, states, times);
  }

  // ---- RowStore

  u64 changes() const { return store_.changes(); }
  u64 searched() const { return store_.searched(); }
  u64 size() const { return store_.size(); }
  i64 newest_time() const { return store_.newest_time(); }
  LoadStatistics load() const { return store_.load(); }

  // ---- RowWriter

  Applied assign(const i64* ids, u64 n, const float* rows, i64 time) {
    return writer_.assign(ids, n, rows, time);
  }
  Applied assign_add(const i64* ids, u64 n, const float* rows, i64 time) {
    return writer_.assign_add(ids, n, rows, time);
  }
  Applied apply_gradients(const i64* ids, u64 n, const Update& update) {
    return writer_.apply_gradients(ids, n, update);
  }
  Applied restore(const i64* ids, u64 n, const float* rows, const float* states, const i64* times) {
    return writer_.restore(ids, n, rows, states, times);
  }
  i64 reinitialize(const i64* ids, u64 n, i64 time, i8* status) {
    return writer_.reinitialize(ids, n, time, status);
  }
  i64 erase(const i64* ids, u64 n, u8* erased) { return writer_.erase(ids, n, erased); }
  i64 move_in(const i64* ids, u64 n, const float* rows, const float* states, const i64* times) {
    return writer_.move_in(ids, n, rows, states, times);
  }
  i64 move_out(const i64* ids, u64 n, u8* gone) { return writer_.move_out(ids, n, gone); }
  Applied counted() const { return writer_.counted(); }

  // ---- ChangeTracker

  u64 open_touched(u64 capacity, Watched watched, OnOverflow on_overflow) {
    return tracker_.open(capacity, watched, on_overflow);
  }
  void close_touched(u64 consumer) { tracker_.close(consumer); }
  TouchedStep take_touched(u64 consumer, int shard, u64 room, i64* ids) {
    return tracker_.take(consumer, shard, room, ids);
  }
  void touch(u64 consumer, const i64* ids, u64 n) { tracker_.touch(consumer, ids, n); }
  void touch_all(u64 consumer) { tracker_.touch_all(consumer); }
  TouchedUse touched_use(u64 consumer) const { return tracker_.use(consumer); }

  // ---- Snapshotter

  SnapshotStart open_snapshot(u64 aside_bytes, OtherWriters others) {
    return snapshots_.open(aside_bytes, others);
  }
  void resume_writers() { snapshots_.resume_writers(); }
  SnapshotStep read_snapshot(u64 ticket, u64 room, i64* ids, float* rows, float* states,
                             i64* times) {
    return snapshots_.read(ticket, room, ids, rows, states, times);
  }
  SnapshotUse snapshot_use() const { return snapshots_.use(); }
  void close_snapshot(u64 ticket) { snapshots_.close(ticket); }
  bool reads_snapshot() const { return snapshots_.is_read_by_this_thread(); }

  // ---- Evictor

  ScanStep evict_older(i64 reference, const i64* ages, u64 cursor, u64 room, i64* ids, i64* times) {
    return evictor_.evict_older(reference, ages, cursor, room, ids, times);
  }
  Cut find_cut(LeaveBy order, u64 budget, u64 top = 0) {
    return evictor_.find_cut(order, budget, top);
  }
  ScanStep evict_ranked(LeaveBy order, const Cut& cut, u64 top, u64 cursor, u64 room, i64* ids,
                        i64* times) {
    return evictor_.evict_ranked(order, cut, top, cursor, room, ids, times);
  }
  u64 looked_at() const { return evictor_.looked_at(); }

  // ---- all rows at once

  MemoryUse memory() const;
  bool clear();  // false: refused, a snapshot is open
  // Swaps all rows with a table of the same layout, the slot key and the newest time. Rules, counts
  // and consumers of changes stay. False: refused, a snapshot is open, or the rows of only one lie
  // in a file, or in files with different budgets.
  bool exchange(Table& other);
  bool place_by(u64 slot_key);  // by this key from now on. False: refused, there are rows

 private:
  template <class Body>
  void change_all_rows(const Body& body);

  const RowValues values_;
  RowStore store_;
  ChangeTracker tracker_;
  Snapshotter snapshots_;
  RowAllocator allocator_;
  AdmissionGate admission_;
  RowReader reader_;
  RowWriter writer_;
  Evictor evictor_;
};

}  // namespace hedgerow
