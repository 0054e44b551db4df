// Adds in the order of the batch, so that the sum does not depend on the number of threads.
#include "grad_sum.h"

#include "finite.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 4;  // gradients of one id that are fetched ahead

struct SumBody {
  static HR_INLINE void add(const SumArgs& args, std::span<const u32> at, float* __restrict sum) {
    const u64 dim = u64(args.dim);
    const float* __restrict first = args.grads + at[0] * dim;
    const float* __restrict second = args.grads + at[1] * dim;
    for (u64 c = 0; c < dim; ++c) sum[c] = first[c] + second[c];
    for (u64 k = 2; k < at.size(); ++k) {
      if (k + kAhead < at.size()) {
        const float* ahead = args.grads + at[k + kAhead] * dim;
        fetch_bytes(ahead, sizeof(float) * dim);
      }
      const float* __restrict more = args.grads + at[k] * dim;
      for (u64 c = 0; c < dim; ++c) sum[c] += more[c];
    }
  }

  static HR_INLINE void run(const SumArgs& args) {
    const u64 dim = u64(args.dim);
    for (u64 i = 0; i < args.n; ++i) {
      const std::span<const u32> at = args.plan->occurrences(args.groups[i]);
      if (at.size() == 1) {
        args.sums[i] = args.grads + at[0] * dim;
      } else {
        add(args, at, args.room + i * dim);
        args.sums[i] = args.room + i * dim;
      }
      args.finite[i] = all_finite(args.sums[i], dim);
    }
  }
};

}  // namespace

SumFunction sum_function(Isa isa) { return Variants<SumBody, const SumArgs&>::pick(isa); }

}  // namespace hedgerow
