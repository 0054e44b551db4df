// Orders the keys of ragged rows by the shard that owns them: a stable counting sort, parallel over
// keys, so that one long row is shared by all threads.
#pragma once

#include "route.h"

namespace hedgerow {

// What a key is called in the output: as in the input, or as at its owner.
enum class KeyNames { global, local };

// Rows of keys: row r holds keys[row_splits[r] .. row_splits[r + 1]). Feature f has the rows
// feature_rows[f] .. feature_rows[f + 1] and the rule rules[f].
struct BucketInput {
  const u64* keys;
  const i64* row_splits;
  u64 rows;
  const i64* feature_rows;
  const RouteRule* rules;
  u64 features;
  u64 shards;
  const float* weights;  // or null
  KeyNames names;
};

// Row r of shard p is row p * rows + r. `weights`, `positions` and `places` may be null:
// `positions` are places of keys in their source rows, `places` say where a key of the input went.
struct BucketOutput {
  i64* lengths;  // [shards * rows]
  u64* keys;
  float* weights;
  i64* positions;
  i64* places;
};

void bucketize(const BucketInput& in, const BucketOutput& out);

}  // namespace hedgerow
