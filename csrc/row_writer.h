// Writes rows of a table by id: plans a call, reserves what it may need, commits.
//
// A call gives each id to one thread, its occurrences in input order, so results do not depend on
// the number of threads. Memory a write may need is reserved before the first row changes: a call
// that fails for lack of it has changed nothing, unless other calls meanwhile erased rows that it
// had found and took their room, or not even its scratch could be had; the error says so.
#pragma once

#include <atomic>
#include <span>

#include "admission_gate.h"
#include "change_tracker.h"
#include "plan.h"
#include "row_allocator.h"
#include "row_store.h"
#include "row_values.h"
#include "snapshotter.h"

namespace hedgerow {

struct Batch;

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
// the table's `changes` are those that it had before that lookup.
struct KnownRows {
  const u32* rows;
  u64 changes;
};

struct Update {
  const float* grads;  // [n, dim]
  const float* rates;  // one per segment
  i64 step;
  i64 time;
  EqualIds equal_ids;
  const i64* counts = nullptr;  // occurrences that each id stands for, [n]; null: one each
  // Where gradients lie apart: the place of each, and what it is multiplied with, if anything.
  // Then `grads` is null, and equal ids are summed.
  const float* const* grad_at = nullptr;
  const float* scale = nullptr;
  float clip = 0;  // a summed gradient that is longer is made so long; 0: none is
  const KnownRows* known = nullptr;
};

class RowWriter {
 public:
  RowWriter(RowStore& store, const RowValues& values, RowAllocator& allocator,
            const AdmissionGate& admission, ChangeTracker& tracker, Snapshotter& snapshots)
      : store_(store),
        values_(values),
        allocator_(allocator),
        admission_(admission),
        tracker_(tracker),
        snapshots_(snapshots) {}

  // Equal ids act in input order. The first three ask the table's admission rule about absent ids;
  // of ids that it refuses nothing is written.
  Applied assign(const i64* ids, u64 n, const float* rows, i64 time);
  Applied assign_add(const i64* ids, u64 n, const float* rows, i64 time);
  Applied apply_gradients(const i64* ids, u64 n, const Update& update);
  Applied restore(const i64* ids, u64 n, const float* rows, const float* states, const i64* times);
  i64 reinitialize(const i64* ids, u64 n, i64 time, i8* status);  // how many rows were born
  i64 erase(const i64* ids, u64 n, u8* erased);                   // how many rows are gone
  // Rows that come from another store of the same table, or go to one: they are not tracked as
  // touched, nothing is counted, no time is seen, and rows may hold what is not finite. How many
  // came or went.
  i64 move_in(const i64* ids, u64 n, const float* rows, const float* states, const i64* times);
  i64 move_out(const i64* ids, u64 n, u8* gone);

  Applied counted() const;  // over the life of the table

 private:
  template <class Op>
  Applied write(const i64* ids, u64 n, const Op& op, i64 newest,
                const AdmissionContext* admitted_by = nullptr);
  template <class Op>
  Applied write_now(const i64* ids, u64 n, const Op& op, const AdmissionContext* admitted_by);
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
  void carry_out(Plan& plan, int shard, Batch& batch, const Op& op, Applied& applied);
  template <class Op>
  void track(int shard, const Batch& batch);
  u64 tile_ids(u64 n) const;
  void find_groups(Plan& plan, int shard, const KnownRows* known) const;
  bool take_known_rows(Plan& plan, int shard, const KnownRows& known) const;
  void count(const Applied& applied);

  RowStore& store_;
  const RowValues& values_;
  RowAllocator& allocator_;
  const AdmissionGate& admission_;
  ChangeTracker& tracker_;
  Snapshotter& snapshots_;
  std::atomic<i64> inserted_{0}, refused_{0}, dropped_{0}, erased_{0};
};

}  // namespace hedgerow
