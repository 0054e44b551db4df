// Layouts, backward: a feature's vectors are summed by one thread, in order. Features that share
// vectors are done by one thread altogether.
#include <algorithm>
#include <cstring>

#include "isa.h"
#include "ops_layout_parts.h"
#include "pool.h"
#include "scratch.h"

namespace hedgerow {
namespace {

constexpr u64 kClearBytes = 1u << 18;  // of one task

template <class T>
struct Unit {
  const LayoutPlan* plan;
  const LayoutBatch* batch;
  const LayoutRequest* request;
  T* const* lists;
  const T* const* grads;
  T scale;
  u64 feature;
};

// Adds what `rows` rows of one position of the output received to `count` vectors from `first` on.
template <class T, class Vectors>
HR_INLINE void give(const LayoutTask& task, const Vectors& vectors, u64 first, u64 count,
                    const T* grad, u64 rows, T scale, T divisor) {
  each_run<false>(task.width, [&](auto columns, u64 c) HR_INLINE_LAMBDA {
    Values<T, decltype(columns)::value> sum(grad + c);
    for (u64 r = 1; r < rows; ++r) sum.add(grad + r * task.row_stride + c);
    sum.multiply(scale);
    if (divisor != 1) sum.divide(divisor);
    for (u64 k = first; k < first + count; ++k) sum.add_to(vectors[k] + task.start + c);
  });
}

template <class T>
struct BackwardBody {
  // One row of ids that `rows` rows of the outputs share.
  template <class Vectors>
  static HR_INLINE void row(const Unit<T>& unit, std::span<const LayoutTask> tasks,
                            const Vectors& vectors, u64 count, u64 row, u64 rows) {
    for (const LayoutTask& task : tasks) {
      const T* grad =
          unit.grads[task.output] + (unit.request->row + row) * task.row_stride + task.column;
      if (task.pooling == LayoutPooling::first_n) {
        for (u64 k = 0; k < std::min(task.length, count); ++k, grad += task.position_stride)
          give(task, vectors, k, 1, grad, rows, unit.scale, T(1));
      } else {
        const T divisor = task.pooling == LayoutPooling::mean ? T(count) : T(1);
        give(task, vectors, 0, count, grad, rows, unit.scale, divisor);
      }
    }
  }

  static HR_INLINE void run(const Unit<T>& unit) {
    const LayoutBatch& batch = *unit.batch;
    const auto tasks = unit.plan->tasks(unit.feature);
    const Entries entries = batch.entries(*unit.request, unit.feature);
    const u64 rows = entries.shared ? unit.request->rows : 1;
    if (tasks.empty() || unit.request->rows == 0) return;
    KeptVectors<T> kept;
    for (u64 e = 0; e < entries.count; ++e) {
      const u64 begin = u64(batch.offset(entries.first + e));
      const u64 count = u64(batch.offset(entries.first + e + 1)) - begin;
      const i64* words = batch.ids + unit.request->ids + begin;
      if (count == 0) continue;
      if (count <= kRowIds) {
        kept.find(words, count, unit.lists);
        row(unit, tasks, kept, count, e, rows);
      } else {
        const FoundVectors<T> found{words, unit.lists};
        row(unit, tasks, found, count, e, rows);
      }
    }
  }
};

// Whether the features of every request touch different values, each feature beyond the one before
// it in every list: so producers write them. Then threads may take features each for itself.
class Apart {
 public:
  Apart(const LayoutPlan& plan, const LayoutBatch& batch) : plan_(plan), batch_(batch) {}

  bool holds() {
    const u64 lists = batch_.lists, features = plan_.features();
    Scratch<u64> end(lists), top(lists);
    Scratch<u64> touched(lists);
    for (const LayoutRequest& request : batch_.requests) {
      std::fill(end.begin(), end.end(), 0);
      std::fill(top.begin(), top.end(), 0);
      for (u64 q = 0; q < features; ++q)
        if (!beyond(request, q, end.data(), top.data(), touched.data())) return false;
    }
    return true;
  }

 private:
  // `end` bounds the features before this one, `top` this one too; lists it touches are noted.
  bool beyond(const LayoutRequest& request, u64 feature, u64* end, u64* top, u64* touched) const {
    const Entries entries = batch_.entries(request, feature);
    const u64 reach = plan_.reach(feature);
    if (entries.count == 0 || reach == 0) return true;
    const i64* words = batch_.ids + request.ids;
    const u64 last = u64(batch_.offset(entries.first + entries.count));
    u64 lists = 0;
    for (u64 i = u64(batch_.offset(entries.first)); i < last; ++i) {
      const u64 list = list_of(words[i]), from = offset_of(words[i]);
      if (from < end[list]) return false;
      if (top[list] == end[list]) touched[lists++] = list;
      top[list] = std::max(top[list], from + reach);
    }
    for (u64 i = 0; i < lists; ++i) end[touched[i]] = top[touched[i]];
    return true;
  }

  const LayoutPlan& plan_;
  const LayoutBatch& batch_;
};

template <class T>
void clear_lists(const LayoutBatch& batch, const std::vector<T*>& lists) {
  struct Piece {
    T* from;
    u64 count;
  };
  std::vector<Piece> pieces;
  const u64 most = kClearBytes / sizeof(T);
  for (u64 i = 0; i < lists.size(); ++i)
    for (u64 at = 0; at < batch.lengths[i]; at += most)
      pieces.push_back({lists[i] + at, std::min(most, batch.lengths[i] - at)});
  run_tasks(pieces.size(), worth_threads<T>(batch), [&](i64 number) {
    std::memset(pieces[number].from, 0, sizeof(T) * pieces[number].count);
  });
}

}  // namespace

template <class T>
void layout_backward(const LayoutPlan& plan, const LayoutBatch& batch,
                     const std::vector<const T*>& grads, T scale, const std::vector<T*>& lists) {
  check_addresses(plan, batch, lists.size(), grads.size());
  const CallScope scope;
  clear_lists(batch, lists);
  std::vector<Unit<T>> units;
  for (u64 number = 0; number < batch.requests.size(); ++number) {
    const LayoutRequest& request = batch.requests[number];
    for (u64 q = 0; q < plan.features(); ++q)
      units.push_back(
          {&plan, &batch, &request, lists.data() + number * batch.lists, grads.data(), scale, q});
  }
  const auto run = Variants<BackwardBody<T>, const Unit<T>&>::pick(active_isa());
  const bool many = worth_threads<T>(batch) && Apart(plan, batch).holds();
  run_tasks(units.size(), many, [&](i64 number) { run(units[number]); });
}

template void layout_backward(const LayoutPlan&, const LayoutBatch&,
                              const std::vector<const float*>&, float, const std::vector<float*>&);
template void layout_backward(const LayoutPlan&, const LayoutBatch&,
                              const std::vector<const double*>&, double,
                              const std::vector<double*>&);

}  // namespace hedgerow
