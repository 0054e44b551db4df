// The gather, shared with the pool.
#include "gather.h"

#include <algorithm>

#include "isa.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kRows = 2048;  // of one task, as many as a lookup reads at a time
constexpr u64 kAhead = 32;   // rows in flight

struct GatherBody {
  static HR_INLINE void run(const float* rows, const i64* numbers, u64 n, u64 dim, float* out) {
    const auto fetch = [&](u64 i) {
      const float* row = rows + u64(numbers[i]) * dim;
      fetch_bytes(row, sizeof(float) * dim);
    };
    for (u64 i = 0; i < std::min(n, kAhead); ++i) fetch(i);
    for (u64 i = 0; i < n; ++i) {
      if (i + kAhead < n) fetch(i + kAhead);
      const float* row = rows + u64(numbers[i]) * dim;
      for (u64 c = 0; c < dim; ++c) out[i * dim + c] = row[c];
    }
  }
};

}  // namespace

void gather(const float* rows, const i64* numbers, u64 n, u64 dim, float* out) {
  const CallScope scope;
  const auto run =
      Variants<GatherBody, const float*, const i64*, u64, u64, float*>::pick(active_isa());
  parallel_for(i64((n + kRows - 1) / kRows), [&](i64 task) {
    const u64 from = u64(task) * kRows;
    run(rows, numbers + from, std::min(kRows, n - from), dim, out + from * dim);
  });
}

}  // namespace hedgerow
