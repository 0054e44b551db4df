// What each writing verb does with one id: whether its row is needed, how it is born, how it
// changes.
//
// An op is shared by all threads of a call; what a thread needs for itself is in its Worker.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "finite.h"
#include "isa.h"
#include "rounding.h"
#include "table.h"

namespace hedgerow {

enum class Verdict { write, drop, erase };
using Occurrences = std::span<const u32>;

// Access to the table's rows for the ops below.
struct WriteOps {
  static const RowLayout& layout(const Table& table) { return table.layout_; }
  static u64 seed(const Table& table) { return table.seed_; }
  static bool skips(const Table& table, const float* values) {
    if (!table.skip_zero_) return false;
    float squares = 0;
    for (int i = 0; i < table.layout_.dim; ++i) squares += values[i] * values[i];
    return squares < 0x1p-126f;  // zero, or too small for a normal float
  }
  static void start_state(const Table& table, u8* row) {
    if (!table.layout_.serving) table.start_state(reinterpret_cast<float*>(row));
  }
  static void start_values(const Table& table, u64 key, float* values) {
    table.start_values(key, values);
  }
  // The raw values of a row that is there.
  static void get(const Table& table, const u8* row, float* values) {
    if (table.layout_.serving) return table.decode_row(row, values);
    std::memcpy(values, row, sizeof(float) * table.layout_.dim);
  }
  static void set(const Table& table, const float* values, u8* row) {
    if (table.layout_.serving) return table.encode_row(values, row);
    std::memcpy(row, values, sizeof(float) * table.layout_.dim);
  }
};

struct NoScratch {
  template <class Op>
  explicit NoScratch(const Op&) {}
};

// Given rows [n, dim]; those a row cannot hold are left out and counted.
struct GivenRows {
  const Table& table;
  const float* rows;

  const float* at(u32 i) const { return rows + u64(i) * WriteOps::layout(table).dim; }

  // The last usable occurrence, which wins over the others, or kNoRow.
  u32 last(Occurrences all, Applied& applied) const {
    u32 winner = kNoRow;
    for (u32 i : all) {
      if (WriteOps::layout(table).can_hold(at(i))) {
        winner = i;
      } else {
        ++applied.dropped;
      }
    }
    return winner;
  }
  Verdict verdict(u32 winner) const {
    if (winner == kNoRow) return Verdict::drop;
    return WriteOps::skips(table, at(winner)) ? Verdict::erase : Verdict::write;
  }
};

struct Winner {
  u32 occurrence = kNoRow;
  template <class Op>
  explicit Winner(const Op&) {}
};

struct AssignOp {
  using Worker = Winner;
  static constexpr bool kInserts = true;
  const Table& table;
  GivenRows given;
  i64 time;

  void fetch(Occurrences all) const { __builtin_prefetch(given.at(all.back())); }
  Verdict prepare(Worker& winner, const Group&, Occurrences all, const u8*,
                  Applied& applied) const {
    return given.verdict(winner.occurrence = given.last(all, applied));
  }
  void born(u64, u8* row) const { WriteOps::start_state(table, row); }
  void change(Worker& winner, const Group&, Occurrences, bool, u8* row, i64* when, Applied&) const {
    WriteOps::set(table, given.at(winner.occurrence), row);
    *when = time;
  }
};

// Sums start from the row, from its first value, or in a serving table from zeros. A sum that the
// row cannot hold leaves it as it is.
struct AssignAddOp {
  struct Worker {
    std::vector<float> sum;
    explicit Worker(const AssignAddOp& op) : sum(u64(WriteOps::layout(op.table).dim)) {}
  };
  static constexpr bool kInserts = true;
  const Table& table;
  GivenRows given;
  i64 time;

  void fetch(Occurrences all) const { __builtin_prefetch(given.at(all[0])); }
  Verdict prepare(Worker& worker, const Group& group, Occurrences all, const u8* row,
                  Applied& applied) const {
    const RowLayout& layout = WriteOps::layout(table);
    float* sum = worker.sum.data();
    if (row != nullptr) {
      WriteOps::get(table, row, sum);
    } else if (layout.serving) {
      std::fill_n(sum, layout.dim, 0.0f);
    } else {
      WriteOps::start_values(table, group.key, sum);
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
  void born(u64, u8* row) const { WriteOps::start_state(table, row); }
  void change(Worker& worker, const Group&, Occurrences, bool, u8* row, i64* when, Applied&) const {
    WriteOps::set(table, worker.sum.data(), row);
    *when = time;
  }
};

struct RestoreOp {
  using Worker = Winner;
  static constexpr bool kInserts = true;
  const Table& table;
  GivenRows given;
  const float* states;
  const i64* times;

  void fetch(Occurrences all) const { __builtin_prefetch(given.at(all.back())); }
  Verdict prepare(Worker& winner, const Group&, Occurrences all, const u8*,
                  Applied& applied) const {
    return given.verdict(winner.occurrence = given.last(all, applied));
  }
  void born(u64, u8*) const {}
  void change(Worker& winner, const Group&, Occurrences, bool, u8* row, i64* when, Applied&) const {
    const RowLayout& layout = WriteOps::layout(table);
    WriteOps::set(table, given.at(winner.occurrence), row);
    if (!layout.serving)
      std::memcpy(row + sizeof(float) * layout.dim,
                  states + u64(winner.occurrence) * layout.state_floats,
                  sizeof(float) * layout.state_floats);
    *when = times[winner.occurrence];
  }
};

struct ReinitializeOp {
  using Worker = NoScratch;
  static constexpr bool kInserts = true;
  const Table& table;
  i64 time;
  i8* status;

  void fetch(Occurrences) const {}
  Verdict prepare(Worker&, const Group&, Occurrences, const u8*, Applied&) const {
    return Verdict::write;
  }
  void born(u64, u8*) const {}
  void change(Worker&, const Group& group, Occurrences at, bool born_now, u8* row, i64* when,
              Applied&) const {
    WriteOps::start_values(table, group.key, reinterpret_cast<float*>(row));
    WriteOps::start_state(table, row);
    *when = time;
    for (u32 i : at) status[i] = 1;
    if (born_now) status[at[0]] = 0;
  }
};

struct EraseOp {
  using Worker = NoScratch;
  static constexpr bool kInserts = false;
  const Table& table;
  u8* erased;

  void fetch(Occurrences) const {}
  Verdict prepare(Worker&, const Group& group, Occurrences at, const u8*, Applied&) const {
    for (u32 i : at) erased[i] = 0;
    erased[at[0]] = group.row != kNoRow;
    return Verdict::erase;
  }
  void born(u64, u8*) const {}
  void change(Worker&, const Group&, Occurrences, bool, u8*, i64*, Applied&) const {}
};

struct ApplyOp {
  struct Worker {
    std::vector<float> sum, viewed;
    Isa isa = active_isa();
    explicit Worker(const ApplyOp& op)
        : sum(WriteOps::layout(op.table).dim), viewed(WriteOps::layout(op.table).dim) {}
  };
  static constexpr bool kInserts = true;
  const Table& table;
  Update update;

  const float* grad(u32 i) const { return update.grads + u64(i) * WriteOps::layout(table).dim; }

  void fetch(Occurrences at) const {
    const u8* from = reinterpret_cast<const u8*>(grad(at[0]));
    for (int offset = 0; offset < 4 * WriteOps::layout(table).dim; offset += 64)
      __builtin_prefetch(from + offset);
  }

  Verdict prepare(Worker& worker, const Group&, Occurrences at, const u8*, Applied& applied) const {
    const u64 dim = u64(WriteOps::layout(table).dim);
    if (update.per_occurrence) {
      const auto usable = [&](u32 i) { return all_finite(grad(i), dim); };
      if (std::any_of(at.begin(), at.end(), usable)) return Verdict::write;
    } else {
      std::memcpy(worker.sum.data(), grad(at[0]), sizeof(float) * dim);
      for (u32 i : at.subspan(1)) {
        const float* more = grad(i);
        for (u64 c = 0; c < dim; ++c) worker.sum[c] += more[c];
      }
      if (all_finite(worker.sum.data(), dim)) return Verdict::write;
    }
    applied.dropped += i64(at.size());
    return Verdict::drop;
  }

  void born(u64 key, u8* row) const {
    WriteOps::start_values(table, key, reinterpret_cast<float*>(row));
    WriteOps::start_state(table, row);
  }

  void change(Worker& worker, const Group& group, Occurrences at, bool, u8* row, i64* when,
              Applied& applied) const {
    *when = update.time;
    if (!update.per_occurrence) return step(worker, group.key, worker.sum.data(), 0, row);
    u32 number = 0;
    for (u32 i : at) {
      if (all_finite(grad(i), u64(WriteOps::layout(table).dim))) {
        step(worker, group.key, grad(i), number++, row);
      } else {
        ++applied.dropped;
      }
    }
  }

  void step(Worker& worker, u64 key, const float* gradient, u32 number, u8* row) const {
    float* values = reinterpret_cast<float*>(row);
    const std::vector<Segment>& segments = WriteOps::layout(table).segments;
    for (u64 s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      float* w = values + segment.first_column;
      const float* g = gradient + segment.first_column;
      if (segment.codec.kind == CodecKind::one_bit) {
        view_backward(segment.codec, update.step, w, g, segment.dim, worker.viewed.data());
        g = worker.viewed.data();
      }
      segment.rule->step[int(worker.isa)]({.w = w,
                                           .state = values + segment.state_from,
                                           .g = g,
                                           .dim = segment.dim,
                                           .rate = update.rates[s],
                                           .step = update.step,
                                           .settings = &segment.settings});
      if (segment.round_to_half)
        round_row_to_half(WriteOps::seed(table), key, update.step, number, segment.first_column,
                          segment.dim, w);
    }
  }
};

}  // namespace hedgerow
