// Calls on several tables: pieces of all of them go to the pool at once.
#include "several_tables.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
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

void check(bool good, const char* rule) {
  if (!good) throw std::invalid_argument(rule);
}

void check_tables(const auto& tables) {
  check(std::find(tables.begin(), tables.end(), nullptr) == tables.end(),
        "one of the tables is None; give tables");
}

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
  check_tables(several.tables);
  check(several.splits.size() == tables + 1, "give one split more than there are tables");
  check(std::is_sorted(several.splits.begin(), several.splits.end()), "splits must not fall");
  const u64 share = several.splits[tables] / (kPieces * u64(thread_count()));
  const u64 most = std::clamp(share, kLeastIds, kMostIds);
  each_piece(several.splits.first(tables), several.splits.last(tables), most, read);
}

}  // namespace

std::vector<u64> read_several(const SeveralTables& several, const EntryOutput& output) {
  std::vector<std::atomic<u64>> found(several.tables.size());
  each_read(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    const u64 dim = u64(table.layout().dim), state = u64(table.layout().state_floats);
    u8* const here = output.found + start;
    table.entries(output.ids + start, n, here, output.rows + start * dim,
                  output.states + start * state, output.times + start);
    found[k].fetch_add(u64(std::count_if(here, here + n, [](u8 one) { return one != 0; })),
                       std::memory_order_relaxed);
  });
  return {found.begin(), found.end()};
}

void lookup_several(const SeveralTables& several, const LookupOutputs& output) {
  check(output.missing.size() == several.tables.size(),
        "give a rule for missing ids for each table");
  each_read(several, [&](u64 k, u64 start, u64 n) {
    const Table& table = *several.tables[k];
    table.lookup(output.ids + start, n, output.missing[k], output.step,
                 output.rows + start * u64(table.layout().dim), OutputMemory::reused,
                 output.found + start);
  });
}

void move_in_several(const IncomingRows& incoming) {
  check_tables(incoming.tables);
  check(incoming.starts.size() == incoming.tables.size() &&
            incoming.ends.size() == incoming.tables.size(),
        "give a start and an end for each table");
  const InBackground behind_reads;
  // Tasks on the pool's threads would wait for the reader of a snapshot, which is this thread.
  const RunAlone mine(std::any_of(incoming.tables.begin(), incoming.tables.end(),
                                  [](const Table* table) { return table->reads_snapshot(); }));
  each_piece(incoming.starts, incoming.ends, kPieceRows, [&](u64 k, u64 start, u64 n) {
    Table& table = *incoming.tables[k];
    const u64 dim = u64(table.layout().dim), state = u64(table.layout().state_floats);
    table.move_in(incoming.ids + start, n, incoming.rows + start * dim,
                  incoming.states + start * state, incoming.times + start);
  });
}

}  // namespace hedgerow
