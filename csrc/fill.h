// Copies each vector of a part to every place where its key occurs, and sums gradients back.
#pragma once

#include "bits.h"

namespace hedgerow {

// The places of every key: key k has offsets[inner_splits[k]] up to inner_splits[k + 1].
struct KeyOffsets {
  const i64* offsets;
  u64 n;
  const i64* inner_splits;  // [keys + 1]
  u64 keys;
};

// The keys of one part, row by row; a vector of row r has dims[r] values.
struct KeyPart {
  const i64* keys;
  const i64* row_splits;  // [rows + 1], checked
  const i64* dims;        // [rows]
  u64 rows;
};

enum class PartFault : int { none, key, borders, window };

struct PartCheck {
  PartFault fault;
  u64 at;  // the entry
};

// Whether all keys exist and all their windows lie in `floats`; the first entry where not.
PartCheck check_part(const KeyPart& part, const KeyOffsets& where, u64 floats);

// Marks the keys of a checked part in `seen`; whether one of them was marked already.
bool mark_keys(const i64* keys, u64 n, u8* seen);

// What happens where several entries have one key: all write to its windows in any order, or the
// last one stays.
enum class RepeatedKeys { any_order, last_stays };

// Values of any bytes.
void fill_windows(const KeyPart& part, const KeyOffsets& where, const u8* values, u64 value_bytes,
                  u8* buffer, RepeatedKeys repeated);

// An entry's gradient: the sum over the windows of its key, in their order.
template <class Float>
void sum_windows(const KeyPart& part, const KeyOffsets& where, const Float* grad, Float* out);

}  // namespace hedgerow
