// Calls on several tables at once: some thousands of ids of one table are done by the thread that
// asks, those of all tables by the pool.
#pragma once

#include <span>
#include <vector>

#include "table.h"

namespace hedgerow {

// Tables whose rows are alike; the ids of table k are splits[k] .. splits[k + 1] of all.
struct SeveralTables {
  std::span<const Table* const> tables;
  std::span<const u64> splits;
};

// Where ids are and whole rows go, table after table.
struct EntryRoom {
  const i64* ids;
  u8* found;
  float* rows;
  float* states;
  i64* times;
};

// Where ids are and what a lookup tells goes, table after table; `missing` is each table's rule.
struct LookupRoom {
  const i64* ids;
  std::span<const Missing> missing;
  i64 step;
  float* rows;
  u8* found;
};

// Where rows are that come, which differ; those of table k are starts[k] .. ends[k] of all.
struct Coming {
  std::span<Table* const> tables;
  std::span<const u64> starts;
  std::span<const u64> ends;
  const i64* ids;
  const float* rows;
  const float* states;
  const i64* times;
};

// How many ids of each table were found.
std::vector<u64> read_several(const SeveralTables& several, const EntryRoom& room);
void lookup_several(const SeveralTables& several, const LookupRoom& room);
// In the background: whoever reads comes first. If it fails, some have come: it may be tried again.
void move_in_several(const Coming& coming);

}  // namespace hedgerow
