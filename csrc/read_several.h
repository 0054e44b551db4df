// Whole rows of several tables in one call.
#pragma once

#include <span>

#include "table.h"

namespace hedgerow {

// Where ids are and their rows go, table after table.
struct EntryRoom {
  const i64* ids;
  u8* found;
  float* rows;
  float* states;
  i64* times;
};

// `Table::entries` of tables whose rows are alike; those of table k are splits[k] .. splits[k + 1].
// Some thousands of ids of one table are read by the thread that asks: here the pool shares them.
void read_several(std::span<const Table* const> tables, std::span<const u64> splits,
                  const EntryRoom& room);

}  // namespace hedgerow
