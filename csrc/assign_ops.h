// The verbs that set, add, restore, reinitialize or erase rows.
#pragma once

#include <algorithm>
#include <vector>

#include "finite.h"
#include "write_ops.h"

namespace hedgerow {

struct NoScratch {
  template <class Op>
  explicit NoScratch(const Op&) {}
};

// Given rows [n, dim]; those a row cannot hold are left out and counted.
struct GivenRows {
  const RowValues& values;
  const float* rows;

  const float* at(u32 i) const { return rows + u64(i) * values.dim(); }
  void fetch(u32 i) const { fetch_bytes(at(i), sizeof(float) * values.dim()); }

  // The last usable occurrence, which wins over the others, or kNoRow.
  u32 last(Occurrences all, Applied& applied) const {
    u32 winner = kNoRow;
    for (u32 i : all) {
      if (values.layout().can_hold(at(i))) {
        winner = i;
      } else {
        ++applied.dropped;
      }
    }
    return winner;
  }
  Verdict verdict(u32 winner) const {
    if (winner == kNoRow) return Verdict::drop;
    return values.erases(at(winner)) ? Verdict::erase : Verdict::write;
  }
};

struct Winners {
  u32 occurrence[kBatch];
  template <class Op>
  explicit Winners(const Op&) {}

  void choose(const GivenRows& given, const Plan& plan, Batch& batch, Applied& applied) {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      occurrence[i] = given.last(plan.occurrences(batch.groups[i]), applied);
      batch.verdict[i] = given.verdict(occurrence[i]);
    }
  }
};

struct AssignOp {
  using Worker = Winners;
  static constexpr bool kInserts = true;
  static constexpr bool kLearns = false;
  RowAccess access;
  GivenRows given;
  i64 at_time;

  i64 earliest() const { return at_time; }
  void fetch(Occurrences all) const { given.fetch(all.back()); }
  void prepare(Worker& winners, const Plan& plan, Batch& batch, Applied& applied) const {
    winners.choose(given, plan, batch, applied);
  }
  void born(u64, u8* row) const { access.values.start_state(row); }
  void change(Worker& winners, const Plan&, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      if (batch.row[i] == nullptr) continue;
      access.values.set(given.at(winners.occurrence[i]), batch.row[i]);
      access.stamp(batch, i, at_time, batch.groups[i].count);
    }
  }
};

// Sums start from the row, from its first value, or in a serving table from zeros. A sum that the
// row cannot hold leaves it as it is.
struct AssignAddOp {
  struct Worker {
    std::vector<float> sums;
    explicit Worker(const AssignAddOp& op) : sums(kBatch * op.access.dim()) {}
  };
  static constexpr bool kInserts = true;
  static constexpr bool kLearns = false;
  RowAccess access;
  GivenRows given;
  i64 at_time;

  i64 earliest() const { return at_time; }
  void fetch(Occurrences all) const { given.fetch(all[0]); }
  float* sum_of(Worker& worker, u64 i) const { return worker.sums.data() + i * access.dim(); }
  void prepare(Worker& worker, const Plan& plan, Batch& batch, Applied& applied) const {
    for (u64 i = 0; i < batch.groups.size(); ++i)
      batch.verdict[i] = add(batch.groups[i].key, plan.occurrences(batch.groups[i]), batch.row[i],
                             sum_of(worker, i), applied);
  }
  Verdict add(u64 key, Occurrences all, const u8* row, float* sum, Applied& applied) const {
    const RowLayout& layout = access.values.layout();
    if (row != nullptr) {
      access.values.get(row, sum);
    } else if (layout.serving()) {
      std::fill_n(sum, layout.dim, 0.0f);
    } else {
      access.values.start(key, sum);
    }
    i64 added = 0;
    for (u32 i : all) {
      const float* more = given.at(i);
      if (!all_finite(more, u64(layout.dim))) continue;
      for (int c = 0; c < layout.dim; ++c) sum[c] += more[c];
      ++added;
    }
    if (added != 0 && !layout.can_hold(sum)) added = 0;
    applied.dropped += i64(all.size()) - added;
    return added == 0 ? Verdict::drop : Verdict::write;
  }
  void born(u64, u8* row) const { access.values.start_state(row); }
  void change(Worker& worker, const Plan&, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      if (batch.row[i] == nullptr) continue;
      access.values.set(sum_of(worker, i), batch.row[i]);
      access.stamp(batch, i, at_time, batch.groups[i].count);
    }
  }
};

struct RestoreOp {
  using Worker = Winners;
  static constexpr bool kInserts = true;
  static constexpr bool kLearns = false;
  RowAccess access;
  GivenRows given;
  const float* states;
  const i64* times;
  i64 least_time;

  i64 earliest() const { return least_time; }

  void fetch(Occurrences all) const { given.fetch(all.back()); }
  void prepare(Worker& winners, const Plan& plan, Batch& batch, Applied& applied) const {
    winners.choose(given, plan, batch, applied);
  }
  void born(u64, u8*) const {}
  void change(Worker& winners, const Plan&, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      if (batch.row[i] == nullptr) continue;
      const u64 from = winners.occurrence[i];
      access.values.set(given.at(u32(from)), batch.row[i]);
      access.values.set_state(states + from * access.values.state_floats(), batch.row[i]);
      access.set_stamp(batch.groups[i], times[from]);
    }
  }
};

// Rows that come from another store of the same table, as they are: also what is not finite.
struct MoveInOp : RestoreOp {
  static constexpr bool kMoves = true;

  void prepare(Worker& winners, const Plan& plan, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      winners.occurrence[i] = plan.occurrences(batch.groups[i]).back();
      batch.verdict[i] = Verdict::write;
    }
  }
};

struct ReinitializeOp {
  using Worker = NoScratch;
  static constexpr bool kInserts = true;
  static constexpr bool kLearns = true;
  RowAccess access;
  i64 at_time;
  i8* status;

  i64 earliest() const { return at_time; }
  void fetch(Occurrences) const {}
  void prepare(Worker&, const Plan&, Batch& batch, Applied&) const {
    std::fill_n(batch.verdict, kBatch, Verdict::write);
  }
  void born(u64, u8*) const {}
  void change(Worker&, const Plan& plan, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      if (batch.row[i] == nullptr) continue;
      const Group& group = batch.groups[i];
      access.values.start(group.key, reinterpret_cast<float*>(batch.row[i]));
      access.values.start_state(batch.row[i]);
      access.stamp(batch, i, at_time, 0);
      const Occurrences all = plan.occurrences(group);
      for (u32 at : all) status[at] = 1;
      if (batch.born[i]) status[all[0]] = 0;
    }
  }
};

struct EraseOp {
  using Worker = NoScratch;
  static constexpr bool kInserts = false;
  static constexpr bool kLearns = false;
  RowAccess access;
  u8* erased;

  void fetch(Occurrences) const {}
  void prepare(Worker&, const Plan& plan, Batch& batch, Applied&) const {
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      const Occurrences all = plan.occurrences(batch.groups[i]);
      for (u32 at : all) erased[at] = 0;
      erased[all[0]] = batch.row[i] != nullptr;
      batch.verdict[i] = Verdict::erase;
    }
  }
  void born(u64, u8*) const {}
  void change(Worker&, const Plan&, Batch&, Applied&) const {}
};

struct MoveOutOp : EraseOp {
  static constexpr bool kMoves = true;
};

}  // namespace hedgerow
