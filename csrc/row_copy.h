// Copies rows that lie anywhere into consecutive output, one compilation per instruction set.
#pragma once

#include "isa.h"

namespace hedgerow {

struct CopyArgs {
  const u8* const* rows;  // null: zeros
  u64 n;
  int dim;
  float* out;  // [n, dim]
};

using CopyFunction = void (*)(const CopyArgs&);
CopyFunction copy_function(Isa isa);

}  // namespace hedgerow
