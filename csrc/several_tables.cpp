// Calls on several tables: pieces of all of them go to the pool at once.
#include "several_tables.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kMostIds = 512, kLeastIds = 64;  // of a piece that is read: some microseconds or more
constexpr u64 kPieces = 4;                     // of a thread: those that are late get fewer
constexpr u64 kPieceRows = 256;                // that are written: so long a read waits for it

struct Piece {
  u64 table;
  u64 start;
  u64 end;
};

using Bounds = std::span<const u64>;

template <class Work>
void each_piece(Bounds starts, Bounds ends, u64 most, const Work& work) {
  const CallScope scope;
  std::vector<Piece> pieces;
  for (u64 k = 0; k < starts.size(); ++k)
    for (u64 start = starts[k]; start < ends[k]; start += most)
      pieces.push_back({k, start, std::min(start + most, ends[k])});
  parallel_for(i64(pieces.size()), [&](i64 task) {
    const auto [table, start, end] = pieces[u64(task)];
    work(table, start, end - start);
  });
}

template <class Read>
void each_read(const SeveralTables& several, const Read& read) {
  const u64 tables = several.tables.size();
  const u64 share = several.splits[tables] / (kPieces * u64(thread_count()));
  const u64 most = std::clamp(share, kLeastIds, kMostIds);
  each_piece(several.splits.first(tables), several.splits.last(tables), most, read);
}

}  // namespace

std::vector<u64> read_several(const SeveralTables& several, const EntryRoom& room) {
  std::vector<std::atomic<u64>> found(several.tables.size());
  each_read(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    const u64 dim = u64(table.layout().dim), state = u64(table.layout().state_floats);
    u8* const here = room.found + start;
    table.entries(room.ids + start, n, here, room.rows + start * dim, room.states + start * state,
                  room.times + start);
    found[k].fetch_add(u64(std::count_if(here, here + n, [](u8 one) { return one != 0; })),
                       std::memory_order_relaxed);
  });
  return {found.begin(), found.end()};
}

void lookup_several(const SeveralTables& several, const LookupRoom& room) {
  each_read(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    table.lookup(room.ids + start, n, room.missing[k], room.step,
                 room.rows + start * u64(table.layout().dim), OutputMemory::reused,
                 room.found + start);
  });
}

void move_in_several(const Coming& coming) {
  const InBackground behind_reads;
  // Tasks on the pool's threads would wait for the reader of a snapshot, which is this thread.
  const RunAlone mine(std::any_of(coming.tables.begin(), coming.tables.end(),
                                  [](const Table* table) { return table->reads_snapshot(); }));
  each_piece(coming.starts, coming.ends, kPieceRows, [&](u64 k, u64 start, u64 n) {
    Table& table = *coming.tables[k];
    const u64 dim = u64(table.layout().dim), state = u64(table.layout().state_floats);
    table.move_in(coming.ids + start, n, coming.rows + start * dim, coming.states + start * state,
                  coming.times + start);
  });
}

}  // namespace hedgerow
