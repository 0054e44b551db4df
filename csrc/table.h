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
#include <vector>

#include "admission.h"
#include "arena.h"
#include "layout.h"
#include "plan.h"
#include "shard.h"

namespace hedgerow {

struct Batch;

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

struct Update {
  const float* grads;  // [n, dim]
  const float* rates;  // one per segment
  i64 step;
  i64 time;
  bool per_occurrence;
  const i64* counts = nullptr;  // occurrences that each id stands for, [n]; null: one each
};

// What an admission rule is told about a write.
struct Asking {
  i64 step;
  bool per_occurrence = false;
  const i64* counts = nullptr;
};

struct MemoryUse {
  u64 index_bytes;  // the index's buckets
  u64 row_bytes;    // live rows with their time stamps
  u64 slack_bytes;  // rows taken but not live, and padding
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

class Table {
 public:
  Table(const std::vector<SegmentSpec>& segments, bool serving, bool skip_zero, u64 seed,
        u64 initial_capacity, std::shared_ptr<Admission> admission = nullptr);
  ~Table();

  const RowLayout& layout() const { return layout_; }

  // Reads. `out` [n, dim]; nothing is inserted. `reused` says that the output was written before: a
  // large one is then stored past the caches, one that was not comes on huge pages where it may.
  void lookup(const i64* ids, u64 n, Missing missing, i64 step, float* out, bool reused) const;
  void contains(const i64* ids, u64 n, u8* out) const;
  // Raw rows [n, dim], states [n, state_floats] and times of the ids found; others are zeros.
  void entries(const i64* ids, u64 n, u8* found, float* rows, float* states, i64* times) const;
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
  void clear();

 private:
  friend struct WriteOps;

  template <class Visitor>
  void visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const;
  template <class Visitor>
  void visit_piece(const i64* keys, u64 from, u64 count, const Visitor& visitor) const;
  u64 task_ids(u64 n, bool reused) const;

  template <class Op>
  Applied write(const i64* ids, u64 n, const Op& op, const Asking* asking = nullptr);
  i64 admit(Plan& plan, const Asking& asking);  // how many occurrences were refused
  template <class Op>
  Applied commit_all(Plan& plan, u64 n, const Op& op);
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
  u64 tile_ids(u64 n) const;
  void locate(Plan& plan, int shard) const;
  void reserve(Plan& plan, u64 n);
  void release(Plan& plan);
  void make_room(int shard, u64 rows);
  void insert(Plan& plan, int shard, Group& group);
  void remove(int shard, const Group& group);
  void count(const Applied& applied);

  void read_row(const u8* row, i64 step, float* out) const;
  void copy_entry(u32 row, float* rows, float* states, i64* time) const;
  void start_state(float* row) const;
  void start_values(u64 key, float* values) const;
  void decode_row(const u8* row, float* out) const;
  void encode_row(const float* values, u8* row) const;
  void saw_time(i64 time);

  RowLayout layout_;
  bool skip_zero_;
  u64 seed_;
  std::shared_ptr<Admission> admission_;  // null: every id
  Arena arena_;
  std::vector<std::unique_ptr<Shard>> shards_;
  RwLock clearing_;  // shared by calls that write, alone for `clear`: it takes back all rows
  alignas(64) IndexView views_[kShards];  // of the shards' indexes, under their locks
  std::atomic<i64> newest_time_{0};
  std::atomic<i64> inserted_{0}, refused_{0}, dropped_{0}, erased_{0};
};

}  // namespace hedgerow
