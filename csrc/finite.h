// Finds values that are not finite.
#pragma once

#include <bit>

#include "bits.h"

namespace hedgerow {

HR_INLINE bool all_finite(const float* values, u64 n) {
  u32 bad = 0;
  for (u64 i = 0; i < n; ++i)
    bad |= u32((std::bit_cast<u32>(values[i]) & 0x7f800000u) == 0x7f800000u);
  return bad == 0;
}

// Position of the first value that is NaN or infinite, or -1. A call of its own: not for use inside
// another.
i64 first_not_finite(const float* values, u64 n);

}  // namespace hedgerow
