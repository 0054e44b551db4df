// The distinct keys of ragged rows in first-seen order, and where the vector of every occurrence
// lies in one flat buffer.
#pragma once

#include "bits.h"

namespace hedgerow {

struct RaggedKeys {
  const u64* keys;
  const i64* row_splits;  // [rows + 1], checked
  const i64* dims;        // [rows]: floats of one vector of a row
  u64 rows;
};

struct UniqueOffsets {
  u64* keys;          // [n], of which as many are set as are distinct
  i64* row_splits;    // [rows + 1], of the distinct keys
  i64* offsets;       // [n], those of one key together, ascending
  i64* inner_splits;  // [n + 1], of which one more is set than keys are distinct
};

// How many keys are distinct. Keys of different rows are different keys.
u64 unique_with_offsets(const RaggedKeys& from, const UniqueOffsets& to);

}  // namespace hedgerow
