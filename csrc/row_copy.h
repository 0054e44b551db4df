// Copies rows that lie anywhere into consecutive output, one compilation per instruction set.
#pragma once

#include "isa.h"

namespace hedgerow {

struct CopyArgs {
  const u8* const* rows;  // null: zeros
  const u32* places;      // [n + 1]: row i goes to places[i] up to places[i + 1], at least one
  u64 n;
  int dim;
  float* out;  // of place 0
};

using CopyFunction = void (*)(const CopyArgs&);
CopyFunction copy_function(Isa isa);

// For output too large for the caches; `out` is the start of all of it.
CopyFunction stream_function(Isa isa, int dim, const float* out);

// To be called by the thread that streamed, before others read the output.
void finish_streaming();

}  // namespace hedgerow
