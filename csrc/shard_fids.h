// The ids of a batch spread over shards, feature by feature, each feature's ids listed once.
#pragma once

#include <vector>

#include "bits.h"

namespace hedgerow {

// One feature's rows of ids.
struct FeatureRows {
  const i64* ids;
  const i64* splits;  // [rows + 1]
  u64 rows;
  u64 count;        // of ids
  u64 first_id;     // its first word among those of the batch
  u64 first_entry;  // its first row among those of the batch
};

// What lists of a feature on each shard begin with.
struct FeatureLists {
  u64 table;
  u64 width;
};

// How often the equal ids of a feature are listed: once, with one number for all, or each time.
enum class EqualFids { listed_once, listed_each };

// Checks the rows of each feature, and writes each row's first word to `offsets` and, for each id,
// shard << 32 | number in the feature's list on that shard to `words`.
// `counts` [features, shards] gets the lengths of those lists. Returns the
// first feature whose rows are not [0, ..., count], or -1.
i64 number_fids(const std::vector<FeatureRows>& features, u64 shards, EqualFids equal, i64* words,
                int* offsets, i64* counts);

// Lists the ids, and turns the words into list << 32 | first value of the vector. `rows` and
// `values` [features, shards] say where a feature's list begins, in `fids` and in its list's
// values.
void place_fids(const std::vector<FeatureRows>& features, const std::vector<FeatureLists>& lists,
                u64 shards, const i64* rows, const i64* values, i64* words, i64* fids);

}  // namespace hedgerow
