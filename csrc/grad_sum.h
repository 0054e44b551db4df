// Sums the gradients of equal ids, one compilation per instruction set.
#pragma once

#include "isa.h"
#include "plan.h"

namespace hedgerow {

struct SumArgs {
  const float* grads;           // [ids, dim], or null and
  const float* const* grad_at;  // the place of each,
  const float* scale;           // and what it is multiplied with, or null
  float clip;                   // the length of the longest sum, or 0
  int dim;
  const Plan* plan;
  const Group* groups;  // n of them
  u64 n;
  float* room;         // [n, dim]
  const float** sums;  // out: in the room, or the gradient itself where an id occurs once
  bool* finite;        // out

  const float* grad(u32 i) const {
    return grad_at == nullptr ? grads + u64(i) * u64(dim) : grad_at[i];
  }
};

using SumFunction = void (*)(const SumArgs&);
SumFunction sum_function(Isa isa);

}  // namespace hedgerow
