// Windows into one flat array, by offset: copied out, and gradients added back.
#pragma once

#include <span>

#include "bits.h"

namespace hedgerow {

// Offsets of one table, all with one width. Offset: i32 or i64, counted in values.
template <class Offset>
struct Windows {
  const Offset* offsets;
  u64 n;
  u64 dim;
  u8* rows;  // [n, dim]: the copies, or the gradients
};

// Each is a call of its own: not for use inside another. Both give the number of the first window,
// counted over all tables, that does not lie within the `size` values, or -1; nothing is written
// then.

template <class Offset>
i64 copy_windows(std::span<const Windows<Offset>> tables, u64 value_bytes, const u8* values,
                 u64 size);

// sums[o + c] = the sum over all windows o of gradient[c] * scale, table after table and row after
// row, whatever the threads. Windows may overlap.
template <class Offset, class Value>
i64 add_windows(std::span<const Windows<Offset>> tables, Value scale, Value* sums, u64 size);

}  // namespace hedgerow
