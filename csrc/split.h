// Sends rows to the splits that their indices name, in input order: a counting pass, then a copy.
//
// The input is cut into blocks, so that threads can work side by side; where a block's rows go
// follows from the counts of the blocks before it, and so never from the number of threads.
#pragma once

#include "bits.h"

namespace hedgerow {

// What the passes share. `starts` [blocks, splits]: rows of a split that lie before a block.
struct SplitPlan {
  const i64* indices;
  u64 n;
  u64 splits;
  u64 blocks;
  i64* starts;
};

// Sets the starts, and `sizes` [splits]. The first place whose index is out of range, else -1.
i64 plan_split(const SplitPlan& plan, i64* sizes);

// Rows of any bytes to their splits, and back.
void split_rows(const SplitPlan& plan, const u8* rows, u64 row_bytes, u8* const* parts);
void join_rows(const SplitPlan& plan, const u8* const* parts, u64 row_bytes, u8* rows);

// Values of ragged rows with their positions. `part_splits` [splits, rows + 1] are the borders of
// the rows in each split.
void split_ragged(const SplitPlan& plan, const i64* values, const i64* row_splits, u64 rows,
                  i64* const* value_parts, i64* const* position_parts, i64* part_splits);

}  // namespace hedgerow
