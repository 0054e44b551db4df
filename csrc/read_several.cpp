// Whole rows of several tables: pieces of all of them go to the pool at once.
#include "read_several.h"

#include <algorithm>
#include <vector>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kPieceIds = 512;  // some tens of microseconds: each thread gets several

struct Piece {
  const Table* table;
  u64 start;
  u64 end;
};

std::vector<Piece> pieces_of(std::span<const Table* const> tables, std::span<const u64> splits) {
  std::vector<Piece> pieces;
  for (u64 k = 0; k < tables.size(); ++k)
    for (u64 start = splits[k]; start < splits[k + 1]; start += kPieceIds)
      pieces.push_back({tables[k], start, std::min(start + kPieceIds, splits[k + 1])});
  return pieces;
}

}  // namespace

void read_several(std::span<const Table* const> tables, std::span<const u64> splits,
                  const EntryRoom& room) {
  const std::vector<Piece> pieces = pieces_of(tables, splits);
  if (pieces.empty()) return;
  const RowLayout& layout = tables[0]->layout();
  const u64 dim = u64(layout.dim), state = u64(layout.state_floats);
  // Each piece is a call of its own for the fork gate: a fork waits for pieces, not for the whole.
  parallel_for(i64(pieces.size()), [&](i64 task) {
    const auto& [table, start, end] = pieces[u64(task)];
    table->entries(room.ids + start, end - start, room.found + start, room.rows + start * dim,
                   room.states + start * state, room.times + start);
  });
}

}  // namespace hedgerow
