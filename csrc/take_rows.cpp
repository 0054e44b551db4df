// The loops over a batch's rows.
#include "take_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "blocks.h"
#include "byte_copy.h"
#include "memory.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 16;  // rows that are being fetched

void keep_least(std::atomic<u64>& least, u64 value) {
  u64 now = least.load(std::memory_order_relaxed);
  while (value < now && !least.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

template <class Value>
struct Adding {
  const RowLists& rows;
  u64 dim;
  const i64* numbers;
  const Value* grads;

  void zero(u64 from, u64 to) const {
    rows.each_run(from, to, [&](u8* row, u64 n) { std::memset(row, 0, n * dim * sizeof(Value)); });
  }

  // Adds the gradients number at[0..n).
  void add(const u64* at, u64 n) const {
    for (u64 k = 0; k < n; ++k) {
      if (k + kAhead < n) {
        fetch_bytes(rows.row(u64(numbers[at[k + kAhead]])), dim * sizeof(Value));
        fetch_line(grads + at[k + kAhead] * dim);
      }
      Value* __restrict sum = reinterpret_cast<Value*>(rows.row(u64(numbers[at[k]])));
      const Value* __restrict grad = grads + at[k] * dim;
      for (u64 c = 0; c < dim; ++c) sum[c] += grad[c];
    }
  }

  // What falls into the rows [from, to).
  void add_part(u64 n, u64 from, u64 to) const {
    zero(from, to);
    u64 at[kBlockRows];
    for (u64 start = 0; start < n; start += kBlockRows) {
      u64 kept = 0;
      for (u64 i = start; i < std::min(n, start + kBlockRows); ++i) {
        at[kept] = i;
        kept += u64(numbers[i]) - from < to - from;  // no branch: it would be a coin's toss
      }
      add(at, kept);
    }
  }
};

}  // namespace

i64 find_rows(std::span<const IdList> lists, const u64* queries, u64 n, Threads threads, i64* out) {
  const CallScope scope;
  ask_for_huge_pages(out, n * sizeof(i64));
  const IdRows rows(lists);
  std::atomic<u64> missing{n};
  for_blocks(n, threads == Threads::all && n * sizeof(i64) >= kWorthThreads, [&](u64 from, u64 to) {
    const u64 absent = from + rows.find(queries + from, to - from, out + from);
    if (absent != to) keep_least(missing, absent);
  });
  return missing == n ? -1 : i64(missing.load());
}

void copy_rows(std::span<const RowList> lists, u64 row_bytes, const i64* numbers, u64 n,
               Threads threads, u8* out) {
  const CallScope scope;
  ask_for_huge_pages(out, n * row_bytes);
  const RowLists rows(lists, row_bytes);
  for_blocks(n, threads == Threads::all && n * row_bytes >= kWorthThreads, [&](u64 from, u64 to) {
    with_bytes(row_bytes, [&](auto bytes) {
      const auto fetch = [&](u64 i) { fetch_bytes(rows.row(u64(numbers[i])), bytes); };
      for (u64 i = from; i < std::min(to, from + kAhead); ++i) fetch(i);
      for (u64 i = from; i < to; ++i) {
        if (i + kAhead < to) fetch(i + kAhead);
        std::memcpy(out + i * bytes, rows.row(u64(numbers[i])), bytes);
      }
    });
  });
}

template <class Value>
void add_rows(std::span<const RowList> lists, u64 dim, const i64* numbers, u64 n, Threads threads,
              const Value* grads) {
  const CallScope scope;
  for (const RowList& list : lists) ask_for_huge_pages(list.rows, list.n * dim * sizeof(Value));
  const RowLists rows(lists, dim * sizeof(Value));
  const Adding<Value> adding{rows, dim, numbers, grads};
  for_parts(rows.rows(), threads == Threads::all && n * dim * sizeof(Value) >= kWorthThreads,
            [&](u64 from, u64 to) { adding.add_part(n, from, to); });
}

template void add_rows<float>(std::span<const RowList>, u64, const i64*, u64, Threads,
                              const float*);
template void add_rows<double>(std::span<const RowList>, u64, const i64*, u64, Threads,
                               const double*);

}  // namespace hedgerow
