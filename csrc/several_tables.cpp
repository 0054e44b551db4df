// Reads of several tables: pieces of all of them go to the pool at once.
#include "several_tables.h"

#include <algorithm>
#include <vector>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kPieceIds = 512;  // some tens of microseconds: each thread gets several

struct Piece {
  u64 table;
  u64 start;
  u64 end;
};

template <class Read>
void each_piece(const SeveralTables& several, const Read& read) {
  const CallScope scope;
  std::vector<Piece> pieces;
  for (u64 k = 0; k < several.tables.size(); ++k)
    for (u64 start = several.splits[k]; start < several.splits[k + 1]; start += kPieceIds)
      pieces.push_back({k, start, std::min(start + kPieceIds, several.splits[k + 1])});
  parallel_for(i64(pieces.size()), [&](i64 task) {
    const auto [table, start, end] = pieces[u64(task)];
    read(table, start, end - start);
  });
}

}  // namespace

void read_several(const SeveralTables& several, const EntryRoom& room) {
  each_piece(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    const u64 dim = u64(table.layout().dim), state = u64(table.layout().state_floats);
    table.entries(room.ids + start, n, room.found + start, room.rows + start * dim,
                  room.states + start * state, room.times + start);
  });
}

void lookup_several(const SeveralTables& several, const LookupRoom& room) {
  each_piece(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    table.lookup(room.ids + start, n, room.missing[k], room.step,
                 room.rows + start * u64(table.layout().dim), true, room.found + start);
  });
}

}  // namespace hedgerow
