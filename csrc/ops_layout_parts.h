// What the two directions of a layout share: vectors of a row of ids, and columns in short runs.
#pragma once

#include <cstring>
#include <type_traits>

#include "ops_layout.h"
#include "pool.h"

namespace hedgerow {

#define HR_INLINE_LAMBDA __attribute__((always_inline))

// Bytes of vectors from which a second thread saves more than its waking costs.
constexpr u64 kWorthThreads = u64(2) << 20;

template <class T>
bool worth_threads(const LayoutBatch& batch) {
  u64 values = 0;
  for (const auto length : batch.lengths) values += u64(length);
  return thread_count() > 1 && sizeof(T) * values >= kWorthThreads;
}

// Runs body(0) .. body(tasks - 1), on the pool where that is worth it.
template <class Body>
void run_tasks(u64 tasks, bool many, Body&& body) {
  if (many) return parallel_for(i64(tasks), body);
  for (u64 task = 0; task < tasks; ++task) body(i64(task));
}

constexpr u64 kRowIds = 64;  // ids of a row whose places are kept; few rows have more

// The places of a row's vectors, found once for all slices of the feature.
template <class T>
struct KeptVectors {
  T* places[kRowIds];

  HR_INLINE void find(const i64* words, u64 count, T* const* lists) {
    for (u64 k = 0; k < count; ++k) places[k] = lists[list_of(words[k])] + offset_of(words[k]);
  }
  HR_INLINE T* operator[](u64 k) const { return places[k]; }
};

// The same for a row of any length: each place is found when it is needed.
template <class T>
struct FoundVectors {
  const i64* words;
  T* const* lists;

  HR_INLINE T* operator[](u64 k) const { return lists[list_of(words[k])] + offset_of(words[k]); }
};

// A few values in registers. Vectors of 16 bytes, written out: sums over a loop of vectors are not
// found by the compiler, and wider ones would be cut up before the loops are compiled for wider
// registers.
template <class T, int kColumns>
class Values {
  typedef T Vector __attribute__((vector_size(kColumns == 1 ? sizeof(T) : 16)));
  static constexpr int kVectors = kColumns * sizeof(T) / sizeof(Vector);
  Vector part_[kVectors];

 public:
  HR_INLINE explicit Values(const T* from) { std::memcpy(part_, from, sizeof(part_)); }
  HR_INLINE void add(const T* from) {
    Vector more[kVectors];
    std::memcpy(more, from, sizeof(more));
    for (int i = 0; i < kVectors; ++i) part_[i] += more[i];
  }
  HR_INLINE void multiply(T factor) {
    for (int i = 0; i < kVectors; ++i) part_[i] *= factor;
  }
  HR_INLINE void divide(T divisor) {
    for (int i = 0; i < kVectors; ++i) part_[i] /= divisor;
  }
  HR_INLINE void set(T* to) const { std::memcpy(to, part_, sizeof(part_)); }
  HR_INLINE void add_to(T* to) const {
    Values sum(to);
    for (int i = 0; i < kVectors; ++i) sum.part_[i] += part_[i];
    sum.set(to);
  }
};

template <int kColumns>
using Columns = std::integral_constant<int, kColumns>;

// step(Columns<n>, first) over runs that cover [0, width). With `kTwice` a column may be in two
// runs, which makes them fewer: for steps that only set values.
template <bool kTwice, class Step>
HR_INLINE void each_run(u64 width, const Step& step) {
  u64 c = 0;
  for (; c + 8 <= width; c += 8) step(Columns<8>{}, c);
  if (kTwice && c != 0) {
    if (c < width) step(Columns<8>{}, width - 8);
    return;
  }
  if (c + 4 <= width) {
    step(Columns<4>{}, c);
    c += 4;
    if (kTwice && c < width) {
      step(Columns<4>{}, width - 4);
      return;
    }
  }
  for (; c < width; ++c) step(Columns<1>{}, c);
}

}  // namespace hedgerow
