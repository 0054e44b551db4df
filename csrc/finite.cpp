// The check of a whole gradient, shared with the pool.
#include "finite.h"

#include <algorithm>
#include <atomic>

#include "isa.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kValues = u64(1) << 16;  // of one task

struct CheckBody {
  static HR_INLINE void run(const float* values, u64 n, bool* finite) {
    *finite = all_finite(values, n);
  }
};

}  // namespace

i64 first_not_finite(const float* values, u64 n) {
  const CallScope scope;
  const auto check = Variants<CheckBody, const float*, u64, bool*>::pick(active_isa());
  std::atomic<i64> bad_task{-1};
  const i64 tasks = i64((n + kValues - 1) / kValues);
  parallel_for(tasks, [&](i64 task) {
    bool finite;
    check(values + task * kValues, std::min(kValues, n - task * kValues), &finite);
    if (finite) return;
    i64 seen = bad_task.load();
    while ((seen < 0 || task < seen) && !bad_task.compare_exchange_weak(seen, task)) {
    }
  });
  if (bad_task.load() < 0) return -1;
  u64 at = u64(bad_task.load()) * kValues;
  while (all_finite(values + at, 1)) ++at;
  return i64(at);
}

}  // namespace hedgerow
