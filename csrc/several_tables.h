// Calls on several tables at once: some thousands of ids of one table are done by the thread that
// asks, those of all tables by the pool.
#pragma once

#include <span>
#include <vector>

#include "table.h"

namespace hedgerow {

// Every call throws std::invalid_argument where its lists do not fit together.

// Tables whose rows are alike; the ids of table k are splits[k] .. splits[k + 1] of all.
struct SeveralTables {
  std::span<const Table* const> tables;
  std::span<const u64> splits;
};

// Ids, and where their whole rows are written, table after table.
struct EntryOutput {
  const i64* ids;
  u8* found;
  float* rows;
  float* states;
  i64* times;
};

// Ids, and where a lookup of them is written, table after table; `missing` is the rule of each
// table.
struct LookupOutputs {
  const i64* ids;
  std::span<const Missing> missing;
  i64 step;
  float* rows;
  u8* found;
};

// Distinct ids and their rows, to be moved in. Those of table k are starts[k] .. ends[k] of all.
struct IncomingRows {
  std::span<Table* const> tables;
  std::span<const u64> starts;
  std::span<const u64> ends;
  const i64* ids;
  const float* rows;
  const float* states;
  const i64* times;
};

// How many ids of each table were found.
std::vector<u64> read_several(const SeveralTables& several, const EntryOutput& output);
void lookup_several(const SeveralTables& several, const LookupOutputs& output);
// In the background: whoever reads comes first. If it fails, some have come: it may be tried again.
void move_in_several(const IncomingRows& incoming);

}  // namespace hedgerow
