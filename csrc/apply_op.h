// The verb that learns: one optimizer step per id with its summed gradient, or one per occurrence.
#pragma once

#include <algorithm>
#include <vector>

#include "finite.h"
#include "grad_sum.h"
#include "rounding.h"
#include "write_ops.h"

namespace hedgerow {

struct ApplyOp {
  struct Worker {
    Isa isa = active_isa();
    Block room;  // a block, since it is aligned to lines: sums are written and read at once
    std::vector<float> viewed;
    std::vector<Corrections> corrections;  // of each segment's rule
    const float* sums[kBatch];
    explicit Worker(const ApplyOp& op)
        : room(kBatch * op.access.dim() * sizeof(float), PageSize::small),
          viewed(room.bytes() / sizeof(float)) {
      for (const Segment& segment : op.access.values.layout().segments) {
        const auto of_rule = segment.rule->corrections;
        corrections.push_back(of_rule ? of_rule(segment.settings, op.update.step) : Corrections{});
      }
    }
  };
  static constexpr bool kInserts = true;
  static constexpr bool kLearns = true;
  RowAccess access;
  Update update;

  i64 earliest() const { return update.time; }
  bool one_step_each() const { return update.equal_ids == EqualIds::one_step_each; }
  const float* grad(u32 i) const {
    if (update.grad_at != nullptr) return update.grad_at[i];
    return update.grads + u64(i) * access.dim();
  }
  bool usable(u32 i) const { return all_finite(grad(i), access.dim()); }
  void fetch(Occurrences at) const {
    const u64 bytes = sizeof(float) * access.dim();
    fetch_bytes(grad(at[0]), bytes);
    if (at.size() > 1) fetch_bytes(grad(at[1]), bytes);
  }

  void prepare(Worker& worker, const Plan& plan, Batch& batch, Applied& applied) const {
    bool good[kBatch];
    const u64 n = batch.groups.size();
    if (one_step_each()) {
      for (u64 i = 0; i < n; ++i) {
        const Occurrences at = plan.occurrences(batch.groups[i]);
        good[i] = std::any_of(at.begin(), at.end(), [&](u32 k) { return usable(k); });
      }
    } else {
      sum_function(worker.isa)({update.grads, update.grad_at, update.scale, update.clip,
                                access.values.layout().dim, &plan, batch.groups.data(), n,
                                reinterpret_cast<float*>(worker.room.data()), worker.sums, good});
    }
    for (u64 i = 0; i < n; ++i) {
      batch.verdict[i] = good[i] ? Verdict::write : Verdict::drop;
      if (!good[i]) applied.dropped += batch.groups[i].count;
    }
  }

  void born(u64 key, u8* row) const {
    access.values.start(key, reinterpret_cast<float*>(row));
    access.values.start_state(row);
  }

  void change(Worker& worker, const Plan& plan, Batch& batch, Applied& applied) const {
    Steps steps;
    for (u64 i = 0; i < batch.groups.size(); ++i) {
      if (batch.row[i] == nullptr) continue;
      access.stamp(batch, i, update.time, uses(plan, batch.groups[i]));
      float* row = reinterpret_cast<float*>(batch.row[i]);
      if (!one_step_each()) {
        steps.add(batch.groups[i].key, row, worker.sums[i]);
        continue;
      }
      u32 number = 0;
      for (u32 at : plan.occurrences(batch.groups[i])) {
        if (usable(at)) {
          Steps one;
          one.add(batch.groups[i].key, row, grad(at));
          take(worker, one, number++);
        } else {
          ++applied.dropped;
        }
      }
    }
    if (steps.n != 0) take(worker, steps, 0);
  }

 private:
  // Rows, each with its gradient.
  struct Steps {
    u64 n = 0;
    u64 key[kBatch];
    float* row[kBatch];
    const float* grad[kBatch];
    void add(u64 of, float* values, const float* gradient) {
      key[n] = of;
      row[n] = values;
      grad[n++] = gradient;
    }
  };

  u64 uses(const Plan& plan, const Group& group) const {
    if (update.counts == nullptr) return group.count;
    u64 total = 0;
    for (u32 at : plan.occurrences(group)) total += u64(update.counts[at]);
    return total;
  }

  // `number`: how often the rows were changed in this call.
  void take(Worker& worker, const Steps& steps, u32 number) const {
    const std::vector<Segment>& segments = access.values.layout().segments;
    for (u64 s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      const float* grads[kBatch];
      const bool viewed = segment.codec.kind == CodecKind::one_bit;
      for (u64 i = 0; i < steps.n; ++i) {
        grads[i] = steps.grad[i] + segment.first_column;
        if (!viewed) continue;
        float* back = worker.viewed.data() + i * u64(segment.dim);
        view_backward(segment.codec, update.step, steps.row[i] + segment.first_column, grads[i],
                      segment.dim, back);
        grads[i] = back;
      }
      segment.rule->step[int(worker.isa)]({.rows = steps.row,
                                           .grads = grads,
                                           .n = steps.n,
                                           .first_column = segment.first_column,
                                           .state_from = segment.state_from,
                                           .dim = segment.dim,
                                           .rate = update.rates[s],
                                           .step = update.step,
                                           .settings = &segment.settings,
                                           .corrections = worker.corrections[s]});
      if (!segment.round_to_half) continue;
      for (u64 i = 0; i < steps.n; ++i)
        round_row_to_half(access.values.seed(), steps.key[i], update.step, number,
                          segment.first_column, segment.dim, steps.row[i] + segment.first_column);
    }
  }
};

}  // namespace hedgerow
