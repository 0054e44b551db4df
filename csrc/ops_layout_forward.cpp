// Layouts, forward: blocks of rows are independent, and inside one every value is set by its tasks
// in order.
#include <algorithm>

#include "isa.h"
#include "ops_layout_parts.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kBlockRows = 32;  // their outputs stay in a core's cache while features pass by

template <class T>
struct Block {
  const LayoutPlan* plan;
  const LayoutBatch* batch;
  const LayoutRequest* request;
  T* const* lists;
  T* const* outputs;
  u64 from, to;  // rows of the request
};

// One slice of one row; `count` is not 0.
template <class T, bool kAdds, class Vectors>
HR_INLINE void pool_row(const LayoutTask& task, const Vectors& vectors, u64 count, T* out) {
  const bool mean = task.pooling == LayoutPooling::mean && count > 1;
  const T divisor = T(count);
  each_run<!kAdds>(task.width, [&](auto columns, u64 c) HR_INLINE_LAMBDA {
    Values<T, decltype(columns)::value> sum(vectors[0] + task.start + c);
    for (u64 k = 1; k < count; ++k) sum.add(vectors[k] + task.start + c);
    if (mean) sum.divide(divisor);
    if (kAdds)
      sum.add_to(out + c);
    else
      sum.set(out + c);
  });
}

template <class T>
HR_INLINE void copy(const T* from, u64 width, T* out) {
  each_run<true>(width, [&](auto columns, u64 c) HR_INLINE_LAMBDA {
    Values<T, decltype(columns)::value>(from + c).set(out + c);
  });
}

template <class T>
HR_INLINE void clear(u64 width, T* out) {
  each_run<true>(width, [&](auto columns, u64 c) HR_INLINE_LAMBDA {
    for (int i = 0; i < decltype(columns)::value; ++i) out[c + i] = 0;
  });
}

// One slice of one row with `count` ids, none too.
template <class T, class Vectors>
HR_INLINE void fill_row(const LayoutTask& task, const Vectors& vectors, u64 count, T* out) {
  if (task.pooling == LayoutPooling::first_n) {
    for (u64 k = 0; k < task.length; ++k, out += task.position_stride) {
      if (k < count)
        copy<T>(vectors[k] + task.start, task.width, out);
      else
        clear(task.width, out);
    }
  } else if (count == 0) {
    if (!task.adds) clear(task.width, out);
  } else if (task.adds) {
    pool_row<T, true>(task, vectors, count, out);
  } else {
    pool_row<T, false>(task, vectors, count, out);
  }
}

// Further rows of a shared feature: as the row before, which is in the cache.
template <class T>
HR_INLINE void repeat_row(const LayoutTask& task, T* out, u64 rows) {
  for (; rows != 0; --rows, out += task.row_stride)
    for (u64 k = 0; k < task.length; ++k) {
      T* at = out + k * task.position_stride;
      copy<T>(at, task.width, at + task.row_stride);
    }
}

template <class T>
struct ForwardBody {
  template <class Vectors>
  static HR_INLINE void row(const Block<T>& block, std::span<const LayoutTask> tasks,
                            const Vectors& vectors, u64 count, u64 row, bool shared) {
    for (const LayoutTask& task : tasks) {
      T* out =
          block.outputs[task.output] + (block.request->row + row) * task.row_stride + task.column;
      if (!shared) {
        fill_row(task, vectors, count, out);
      } else if (task.adds) {
        for (u64 r = row; r < block.to; ++r, out += task.row_stride)
          fill_row(task, vectors, count, out);
      } else {
        fill_row(task, vectors, count, out);
        repeat_row(task, out, block.to - row - 1);
      }
    }
  }

  static HR_INLINE void run(const Block<T>& block) {
    const LayoutBatch& batch = *block.batch;
    KeptVectors<T> kept;
    for (u64 q = 0; q < block.plan->features(); ++q) {
      const auto tasks = block.plan->tasks(q);
      if (tasks.empty()) continue;
      const Entries entries = batch.entries(*block.request, q);
      if (entries.count == 0) {
        row(block, tasks, kept, 0, block.from, true);
        continue;
      }
      for (u64 r = block.from; r < (entries.shared ? block.from + 1 : block.to); ++r) {
        const u64 entry = entries.first + (entries.shared ? 0 : r);
        const u64 begin = u64(batch.offset(entry));
        const u64 count = u64(batch.offset(entry + 1)) - begin;
        const i64* words = batch.ids + block.request->ids + begin;
        if (count <= kRowIds) {
          kept.find(words, count, block.lists);
          row(block, tasks, kept, count, r, entries.shared);
        } else {
          const FoundVectors<T> found{words, block.lists};
          row(block, tasks, found, count, r, entries.shared);
        }
      }
    }
  }
};

}  // namespace

template <class T>
void layout_forward(const LayoutPlan& plan, const LayoutBatch& batch,
                    const std::vector<const T*>& lists, const std::vector<T*>& outputs) {
  check_addresses(plan, batch, lists.size(), outputs.size());
  const CallScope scope;
  std::vector<Block<T>> blocks;
  // The loops take one kind of address for both directions; these are only read.
  T* const* places = const_cast<T* const*>(lists.data());
  for (u64 number = 0; number < batch.requests.size(); ++number) {
    const LayoutRequest& request = batch.requests[number];
    for (u64 row = 0; row < request.rows; row += kBlockRows)
      blocks.push_back({&plan, &batch, &request, places + number * batch.lists, outputs.data(), row,
                        std::min(row + kBlockRows, request.rows)});
  }
  const auto run = Variants<ForwardBody<T>, const Block<T>&>::pick(active_isa());
  run_tasks(blocks.size(), worth_threads<T>(batch), [&](i64 number) { run(blocks[number]); });
}

template void layout_forward(const LayoutPlan&, const LayoutBatch&,
                             const std::vector<const float*>&, const std::vector<float*>&);
template void layout_forward(const LayoutPlan&, const LayoutBatch&,
                             const std::vector<const double*>&, const std::vector<double*>&);

}  // namespace hedgerow
