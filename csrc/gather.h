// Copies rows by number, with plain stores: what a lookup would cost if finding a row cost nothing.
#pragma once

#include "bits.h"

namespace hedgerow {

// out[i] = rows[numbers[i]], rows of `dim` floats. Numbers are not checked. A call of its own: not
// for use inside another.
void gather(const float* rows, const i64* numbers, u64 n, u64 dim, float* out);

}  // namespace hedgerow
