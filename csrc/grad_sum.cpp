// Adds in the order of the batch, so that the sum does not depend on the number of threads.
#include "grad_sum.h"

#include <cmath>

#include "finite.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 4;  // gradients of one id that are fetched ahead

struct SumBody {
  static HR_INLINE void add(const SumArgs& args, std::span<const u32> at, float* __restrict sum) {
    const u64 dim = u64(args.dim);
    const float* __restrict first = args.grad(at[0]);
    const float* __restrict second = args.grad(at[1]);
    for (u64 c = 0; c < dim; ++c) sum[c] = first[c] + second[c];
    for (u64 k = 2; k < at.size(); ++k) {
      if (k + kAhead < at.size()) fetch_bytes(args.grad(at[k + kAhead]), sizeof(float) * dim);
      const float* __restrict more = args.grad(at[k]);
      for (u64 c = 0; c < dim; ++c) sum[c] += more[c];
    }
  }

  static HR_INLINE void add_scaled(const SumArgs& args, std::span<const u32> at,
                                   float* __restrict sum) {
    const u64 dim = u64(args.dim);
    const float* __restrict first = args.grad(at[0]);
    for (u64 c = 0; c < dim; ++c) sum[c] = first[c] * args.scale[at[0]];
    for (u64 k = 1; k < at.size(); ++k) {
      const float* __restrict more = args.grad(at[k]);
      for (u64 c = 0; c < dim; ++c) sum[c] += more[c] * args.scale[at[k]];
    }
  }

  // By a factor, as torch scales: sums that are short enough stay as they are.
  static HR_INLINE const float* clipped(const SumArgs& args, const float* sum, float* room) {
    const u64 dim = u64(args.dim);
    float squares = 0;
    for (u64 c = 0; c < dim; ++c) squares += sum[c] * sum[c];
    const float length = std::sqrt(squares);
    if (!(length > args.clip)) return sum;
    const float factor = args.clip / length;
    for (u64 c = 0; c < dim; ++c) room[c] = sum[c] * factor;
    return room;
  }

  static HR_INLINE void run(const SumArgs& args) {
    const u64 dim = u64(args.dim);
    for (u64 i = 0; i < args.n; ++i) {
      const std::span<const u32> at = args.plan->occurrences(args.groups[i]);
      if (args.scale == nullptr && at.size() == 1) {
        args.sums[i] = args.grad(at[0]);
      } else {
        float* const sum = args.room + i * dim;
        args.scale == nullptr ? add(args, at, sum) : add_scaled(args, at, sum);
        args.sums[i] = sum;
      }
      args.finite[i] = all_finite(args.sums[i], dim);
      if (args.clip > 0 && args.finite[i])
        args.sums[i] = clipped(args, args.sums[i], args.room + i * dim);
    }
  }
};

}  // namespace

SumFunction sum_function(Isa isa) { return Variants<SumBody, const SumArgs&>::pick(isa); }

}  // namespace hedgerow
