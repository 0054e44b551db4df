// The embedding table of one process: every verb on rows, safe from many threads.
//
// 64 shards by hash, each behind a reader-writer lock. Readers and writers hold it for a thousand
// rows or two; a larger index is built while readers go on. A call that writes gives each id to one
// thread, its occurrences in input order, so results do not depend on the number of threads. Memory
// a write may need is reserved before the first row changes: a call that fails for lack of it has
// changed nothing, unless other calls meanwhile erased rows that it had found and took their room,
// or not even its scratch could be had; the error says so.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "admission.h"
#include "arena.h"
#include "evict.h"
#include "layout.h"
#include "dense_ids.h"
#include "plan.h"
#include "shard.h"
#include "snapshot.h"
#include "touched.h"

namespace hedgerow {

struct Batch;
struct Cursor;

enum class Missing { zeros, first_value };

// What a write did: rows born, ids refused by admission, values left out because not finite, rows
// removed.
struct Applied {
  i64 inserted = 0, refused = 0, dropped = 0, erased = 0;

  void operator+=(const Applied& other) {
    inserted += other.inserted;
    refused += other.refused;
    dropped += other.dropped;
    erased += other.erased;
  }
};

// The rows of some ids as a lookup found them, kNoRow for those without one. They hold as long as
// the table's `changes` are those that it told before that lookup.
struct KnownRows {
  const u32* rows;
  u64 changes;
};

struct Update {
  const float* grads;  // [n, dim]
  const float* rates;  // one per segment
  i64 step;
  i64 time;
  bool per_occurrence;
  const i64* counts = nullptr;  // occurrences that each id stands for, [n]; null: one each
  // Where gradients lie apart: the place of each, and what it is multiplied with, if anything.
  // Then `grads` is null, and no occurrence is a step of its own.
  const float* const* grad_at = nullptr;
  const float* scale = nullptr;
  float clip = 0;  // a summed gradient that is longer is made so long; 0: none is
  const KnownRows* known = nullptr;
};

// What an admission rule is told about a write.
struct Asking {
  i64 step;
  bool per_occurrence = false;
  const i64* counts = nullptr;
};

struct MemoryUse {
  u64 index_bytes;  // the index's buckets
  u64 row_bytes;    // live rows with their stamps
  u64 slack_bytes;  // rows taken but not live, and padding
  u64 other_bytes;  // parts of pages, changed keys, an open snapshot, working memory of threads
};

struct LoadStatistics {
  double load_factor;  // keys per slot of the index
  u64 longest_search;  // buckets that the worst search for an absent key visits
};

struct ScanStep {
  u64 rows;    // written
  u64 cursor;  // to go on from
  bool done;
  u64 needed;  // not 0: the room was too small for the next rows, which need this much
};

struct TouchedUse {
  u64 keys;       // waiting to be taken
  u64 overflows;  // over the consumer's life
};

struct SnapshotStart {
  u64 ticket;  // 0: another one is open
  u64 rows;
  i64 newest_time;
};

struct SnapshotStep {
  u64 rows;  // written
  bool done;
  u64 needed;  // as in ScanStep
};

class Table {
 public:
  Table(const std::vector<SegmentSpec>& segments, bool serving, bool skip_zero, u64 seed,
        u64 initial_capacity, Marks marks = Marks::none,
        std::shared_ptr<Admission> admission = nullptr, std::shared_ptr<RowFile> rows_in = nullptr,
        u64 slot_key = 0);
  ~Table();

  const RowLayout& layout() const { return layout_; }

  // What places keys in the index; see SlotHash. No result depends on it but the order of scans.
  u64 slot_key() const { return slot_key_.load(); }

  // Reads. `out` [n, dim]; nothing is inserted. `reused` says that the output was written before: a
  // large one is then stored past the caches, one that was not comes on huge pages where it may.
  // `found` says which ids have a row, and `rows` which, for an update of them, where they are
  // given.
  void lookup(const i64* ids, u64 n, Missing missing, i64 step, float* out, bool reused,
              u8* found = nullptr, u32* rows = nullptr) const;
  void contains(const i64* ids, u64 n, u8* out) const;
  // Raw rows [n, dim], states [n, state_floats] and times of the ids found; others are zeros.
  void entries(const i64* ids, u64 n, u8* found, float* rows, float* states, i64* times) const;
  // Grows whenever a key comes or goes: row numbers found before hold as long as it does not.
  u64 changes() const { return changes_.load(); }
  // How many ids lookups and writes have searched for, equal ones that stand together once.
  u64 searched() const { return searched_.load(std::memory_order_relaxed); }
  u64 size() const;
  i64 newest_time() const { return newest_time_.load(); }
  Applied counted() const;  // over the life of the table
  MemoryUse memory() const;
  LoadStatistics load() const;
  // Rows from `cursor` on (0 to begin), up to `room`, as `entries` gives them. A row that lives
  // from the first step to the last is given exactly once, whatever else happens to the table
  // meanwhile.
  ScanStep scan(u64 cursor, u64 room, i64* ids, float* rows, float* states, i64* times) const;

  // Writes. Equal ids act in input order. The first three ask the table's admission rule about
  // absent ids; of ids that it refuses nothing is written.
  Applied assign(const i64* ids, u64 n, const float* rows, i64 time);
  Applied assign_add(const i64* ids, u64 n, const float* rows, i64 time);
  Applied apply_gradients(const i64* ids, u64 n, const Update& update);
  Applied restore(const i64* ids, u64 n, const float* rows, const float* states, const i64* times);
  i64 reinitialize(const i64* ids, u64 n, i64 time, i8* status);  // how many rows were born
  i64 erase(const i64* ids, u64 n, u8* erased);                   // how many rows are gone
  // Rows that come from another store of the same table, or go to one: no consumer of touched keys
  // is told, nothing is counted, no time is seen, and rows may hold what is not finite. How many
  // came or went.
  i64 move_in(const i64* ids, u64 n, const float* rows, const float* states, const i64* times);
  i64 move_out(const i64* ids, u64 n, u8* gone);
  bool clear();  // false: refused, a snapshot is open
  // Swaps all rows with a table of the same layout, the slot key and the newest time; rules, counts
  // and whoever watches stay. False: refused, a snapshot is open, or the rows of only one lie in a
  // file, or in files with different budgets.
  bool exchange(Table& other);
  bool place_by(u64 slot_key);  // by this key from now on. False: refused, there are rows

  // Touched keys, for any number of consumers. Gradients and reinitialisations count, for consumers
  // of all changes every other write and erasure too. `take_touched` goes on from a shard (0 to
  // begin) and gives a shard's keys whole; `touch` puts keys back.
  u64 open_touched(u64 capacity, bool all_changes, bool forget);
  void close_touched(u64 consumer);
  TouchedStep take_touched(u64 consumer, int shard, u64 room, i64* ids);
  void touch(u64 consumer, const i64* ids, u64 n);
  void touch_all(u64 consumer);
  TouchedUse touched_use(u64 consumer) const;

  // A view of all rows as they are when `open_snapshot` returns; one at a time. Each of its rows is
  // given once. With `pause`, writers of other threads wait until `resume_writers`. Writers whose
  // old rows fill `aside_bytes` wait for the reader at the start of their next call.
  SnapshotStart open_snapshot(u64 aside_bytes, bool pause);
  void resume_writers() { snapshot_.resume(); }
  SnapshotStep read_snapshot(u64 ticket, u64 room, i64* ids, float* rows, float* states,
                             i64* times);
  SnapshotUse snapshot_use() const { return snapshot_.use(); }
  void close_snapshot(u64 ticket);
  // Whether this thread reads one: writes of other threads wait for it, those of its own do not.
  bool reads_snapshot() const { return snapshot_.is_open() && snapshot_.is_mine(); }

  // Evictions look at up to `room` rows from `cursor` on (0 to begin); ids and times of the rows
  // that left are written out. As with scan, a row that lives from the first step to the last is
  // looked at exactly once. One eviction at a time.
  // Rows whose age at `reference` has reached that of their slot in `ages` [kAgeSlots], in a table
  // without marks. Shards that can have none are not looked at.
  ScanStep evict_older(i64 reference, const i64* ages, u64 cursor, u64 room, i64* ids, i64* times);
  // The last row that must leave for `budget` rows to stay; no row is looked at if there are no
  // more. `top` is the largest mark that a row may have. Ordering by use needs marks of uses.
  Cut find_cut(LeaveBy order, u64 budget, u64 top = 0);
  // Rows that rank no higher than the cut when they are looked at, at most `cut.excess` of them. By
  // use: rows used since find_cut stay.
  ScanStep evict_ranked(LeaveBy order, const Cut& cut, u64 top, u64 cursor, u64 room, i64* ids,
                        i64* times);
  // How often evictions looked at a row, over the life of the table.
  u64 looked_at() const { return looked_at_.load(); }

 private:
  friend struct WriteOps;

  template <class Visitor>
  void visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const;
  void each_piece(const i64* ids, u64 n, u64 task_ids, const auto& read) const;
  template <u64 kGroup, class Visitor>
  void visit_piece(const SlotHash& hash, const i64* ids, u64 from, u64 count, const u32* known,
                   const Visitor& visitor) const;
  void find_piece(const SlotHash& hash, const i64* ids, u64 count, u32* rows) const;
  bool is_far_apart() const;
  bool near_serves(const SlotHash& hash, const i64* keys, u64 n) const;
  static constexpr u64 kFindIds = 2048;
  template <u64 kGroup>
  void find_rows(const SlotHash& hash, const i64* keys, u64 n, bool near, u32* rows) const;
  u64 task_ids(u64 n, u64 fresh_row_bytes) const;

  template <class Op>
  Applied write(const i64* ids, u64 n, const Op& op, i64 newest, const Asking* asking = nullptr);
  template <class Op>
  Applied write_now(const i64* ids, u64 n, const Op& op, const Asking* asking);
  i64 admit(Plan& plan, const Asking& asking);  // how many occurrences were refused
  template <class Op>
  Applied commit_all(Plan& plan, const Op& op);
  template <class Op>
  void fetch_batch(const Plan& plan, std::span<const Group> groups, const Op& op) const;
  template <class Op>
  void commit(Plan& plan, int shard, std::span<Group> groups, std::span<const Group> next,
              const Op& op, typename Op::Worker& worker, Applied& applied);
  template <class Op>
  void commit_batch(Plan& plan, int shard, std::span<Group> groups, const Op& op,
                    typename Op::Worker& worker, Applied& applied);
  template <class Op>
  void settle(Plan& plan, int shard, Batch& batch, const Op& op, Applied& applied);
  template <class Op>
  void note(int shard, const Batch& batch);
  void before_write();
  void drop_inherited();
  template <class Body>
  void with_all_shards(const Body& body);
  void place_watchers();
  bool is_watched(int shard) const { return !touched_.empty() || snapshot_.watches(shard); }
  Touched& consumer(u64 number) const;
  void read_aside(u64 room, SnapshotStep& step, const auto& emit);
  bool read_live(u64 room, SnapshotStep& step, const auto& emit);
  u64 tile_ids(u64 n) const;
  void locate(Plan& plan, int shard, const KnownRows* known) const;
  bool trust(Plan& plan, int shard, const KnownRows& known) const;
  void reserve(Plan& plan, u64 n);
  void release(Plan& plan);
  void make_room(int shard, u64 rows);
  void insert(Plan& plan, int shard, Group& group);
  void remove(int shard, u64 key, u32 row, bool told = true);
  void count(const Applied& applied);

  template <class Body>
  bool walk_slice(Cursor& cursor, u64 limit, const Body& body);
  template <class Walk>
  ScanStep evict_slices(u64 cursor, u64 room, i64* ids, i64* times, Walk& walk);
  template <class Body>
  void each_rank(u64 top, const Body& body);
  u128 rank_of(const KeyRow& entry, u64 top) const;
  void check_order(LeaveBy order) const;
  void know_ages(const i64* ages);

  // Stamps of rows. `time_of`: the time in a stamp that a write gave.
  i64 stamp_of(u32 row) const { return shown(*arena_.time(row)); }
  i64 time_of(i64 stamp) const { return marks_ == Marks::none ? stamp : i64(seconds_of(stamp)); }
  // A row was written, and so many uses of it were counted.
  HR_INLINE void stamp(u32 row, i64 given, bool born, u64 uses) const {
    i64& stamp = *arena_.time(row);
    if (marks_ == Marks::uses) [[unlikely]] {
      const u64 before = born ? 0 : mark_of(stamp);
      const u64 more = weight_times(mark_of(given), uses);
      stamp = uses ? stamp_with(given, weights_added(before, more)) | kUsedSince
                   : stamp_with(given, before) | (born ? 0 : stamp & kUsedSince);
    } else {
      stamp = given;
    }
  }

  void read_row(const u8* row, i64 step, float* out) const;
  HR_INLINE void fetch_row(u32 row) const {  // and its time
    fetch_bytes(arena_.row(row), u64(layout_.row_bytes));
    fetch_line(arena_.time(row));
  }
  template <class Use>
  void each_fetched(std::span<const KeyRow> entries, const Use& use) const;
  void copy_row(const u8* row, float* values, float* states) const;
  void copy_entry(u32 row, float* rows, float* states, i64* time) const;
  void start_state(float* row) const;
  void start_values(u64 key, float* values) const;
  void decode_row(const u8* row, float* out) const;
  void encode_row(const float* values, u8* row) const;
  void saw_time(i64 time);

  RowLayout layout_;
  bool skip_zero_;
  u64 seed_;
  Marks marks_;
  std::shared_ptr<Admission> admission_;  // null: every id
  Arena arena_;
  std::vector<std::unique_ptr<Shard>> shards_;
  // Shared by calls that write, alone for `clear`, which takes back all rows, and for what must
  // fall between two writing calls.
  mutable RwLock clearing_;
  alignas(64) IndexView views_[kShards];  // of the shards' indexes, under their locks
  std::atomic<u64> slot_key_;             // changes under all locks
  DenseIds near_;
  // Consumers of touched keys: changed with `clearing_` alone, read by calls that share it.
  std::vector<std::pair<u64, std::unique_ptr<Touched>>> touched_;
  u64 touched_opened_ = 0;
  Snapshot snapshot_;
  std::atomic<i64> newest_time_{0};
  std::atomic<i64> inserted_{0}, refused_{0}, dropped_{0}, erased_{0};
  std::atomic<u64> looked_at_{0};
  alignas(64) std::atomic<u64> changes_{0};  // written under the lock of the shard that changes
  mutable std::atomic<u64> searched_{0};
  std::vector<i64> ages_;  // that the shards' oldest times were found with; one eviction at a time
};

// Shows entries in their order while the rows of later ones are on their way: an index knows no
// order of rows, so each would be waited for.
template <class Use>
void Table::each_fetched(std::span<const KeyRow> entries, const Use& use) const {
  constexpr u64 kAhead = 16;
  for (u64 i = 0; i < entries.size() + kAhead; ++i) {
    if (i < entries.size()) fetch_row(entries[i].row);
    if (i >= kAhead) use(entries[i - kAhead]);
  }
}

}  // namespace hedgerow
