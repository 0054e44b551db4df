// Reads by id: grouped, prefetched, in input order.
#include "row_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "buffer.h"
#include "huge_heap.h"
#include "id_runs.h"
#include "pool.h"
#include "probe.h"
#include "read_locks.h"
#include "row_copy.h"

namespace hedgerow {
namespace {

constexpr u64 kReadIds = 2048;               // ids between two looks whether a writer waits
constexpr u64 kTaskPieces = 8;               // of kReadIds each, that one thread reads in one task
constexpr u64 kStreamBytes = u64(32) << 20;  // of output: more than stays in most caches
constexpr u64 kShortBytes = 64;              // of a row that a lookup reads
constexpr u64 kFarBytes = u64(256) << 20;    // of short rows: more than any cache of translations
constexpr u64 kTwoPassIds = u64(1) << 18;    // of a call that finds all rows before it reads any
constexpr u64 kKeepBytes = u64(32) << 20;    // of row numbers, between calls
constexpr u64 kScanRows = 1024;              // rows copied under one hold of a lock

// What a visitor is shown: `n` rows, their numbers, and to which ids of the piece each belongs.
struct Found {
  const u8* const* data;
  const u32* rows;
  const u32* places;  // row i: to places[i] up to places[i + 1]
  u64 n;

  void each_place(const auto& body) const {
    const u64 first = places[0];
    if (places[n] - first == n) {
      for (u64 i = 0; i < n; ++i) body(first + i, i);
      return;
    }
    for (u64 i = 0; i < n; ++i)
      for (u64 place = places[i]; place < places[i + 1]; ++place) body(place, i);
  }
};

// The shards of some keys, as bits. Many keys have all of them.
u64 shards_of(const SlotHash& slot_hash, const i64* keys, u64 n) {
  if (n >= 8 * kShards) return ~u64(0);
  const SlotHash hash = slot_hash;
  u64 shards = 0;
  for (u64 i = 0; i < n; ++i) shards |= u64(1) << shard_of(hash(u64(keys[i])));
  return shards;
}

// Whether keys come shard by shard, as the first of them show: those that changed do, and all of a
// scan. They lie closer together in the index of their shard than in the arrays of dense ids.
bool of_one_shard(const SlotHash& hash, const i64* keys, u64 n) {
  constexpr u64 kFirstKeys = 16;
  return n >= kFirstKeys && std::has_single_bit(shards_of(hash, keys, kFirstKeys));
}

u64 piece_count(u64 n, u64 size) { return (n + size - 1) / size; }

// Ids one thread reads before another takes over: eight times each, where there are so many. A
// thread that first touches a huge page of fresh output waits while the kernel clears it; two
// threads on one page would both wait.
u64 task_ids(u64 n, u64 fresh_row_bytes) {
  const u64 threads = u64(thread_count());
  const bool many_pages = n * fresh_row_bytes >= 4 * kHugePage * threads;
  const u64 pieces = many_pages ? kHugePage / fresh_row_bytes / kReadIds
                                : std::min(n / (8 * threads * kReadIds), kTaskPieces);
  return std::max(u64(1), pieces) * kReadIds;
}

}  // namespace

// The arrays of dense ids are those of all shards: keys of one shard lie closer together in its
// index.
SearchIn RowReader::search_in(const SlotHash& hash, const i64* keys, u64 n) const {
  const bool dense = store_.dense_ids_serve(keys, n) && !of_one_shard(hash, keys, n);
  return dense ? SearchIn::dense_ids_first : SearchIn::index;
}

// Whether rows are short and lie on many more pages than the translation cache holds, so that a
// lookup waits for page tables most of the time.
bool RowReader::rows_are_far_apart() const {
  const Arena& arena = store_.arena();
  if (arena.in_file() || sizeof(float) * values_.dim() > kShortBytes) return false;
  return u64(arena.end()) * u64(values_.layout().stride) >= kFarBytes;
}

// The first of two passes over a piece: rows[i] is the row of its run `i`, or kNoRow.
void RowReader::find_piece(const SlotHash& hash, const i64* ids, u64 count, u32* rows) const {
  const IdRuns<kReadIds> distinct(ids, count);
  const auto [keys, places, runs] = distinct.view();
  store_.count_searched(runs);
  store_.find<kLargeProbeGroup>(hash, keys, runs, search_in(hash, keys, runs), rows);
}

// Each run of equal ids is searched once, unless `known` has the rows of the runs. The rows of a
// group are fetched while those of the one before are visited, and where they have to be searched,
// the homes of later groups are, too.
template <u64 kGroup, class Visitor>
void RowReader::visit_piece(const SlotHash& hash, const i64* ids, u64 from, u64 count,
                            const u32* known, const Visitor& visitor) const {
  const IdRuns<kReadIds> distinct(ids, count);
  const auto [keys, places, runs] = distinct.view();
  u32 found[kReadIds];
  const u32* const rows = known != nullptr ? known : found;
  const u8* data[2 * kGroup];  // as `locate` says; null: absent. Halves are used in turn
  const Arena::View arena = store_.arena().view();
  const auto fetch = [&](u64 start) {
    const u8** const at = data + start % (2 * kGroup);
    const u64 end = std::min(runs, start + kGroup);
    for (u64 i = start; i < end; ++i) {
      const u8* const row = rows[i] == kNoRow ? nullptr : visitor.locate(arena, rows[i]);
      at[i - start] = row;
      if (kGroup == kProbeGroup && row != nullptr) visitor.fetch(row, rows[i]);
    }
    if (kGroup == kProbeGroup) return;
    for (u64 i = start; i < end; ++i)  // side by side, as `FetchBody` says
      if (at[i - start] != nullptr) visitor.fetch(at[i - start], rows[i]);
  };
  const auto visit = [&](u64 start) {
    const u64 n = std::min(kGroup, runs - start);
    visitor.visit(from, Found{data + start % (2 * kGroup), rows + start, places + start, n});
  };
  const auto visit_found = [&] {
    fetch(0);
    for (u64 start = 0; start < runs; start += kGroup) {
      fetch(start + kGroup);
      visit(start);
    }
  };
  if (known != nullptr) return visit_found();
  store_.count_searched(runs);
  if (search_in(hash, keys, runs) == SearchIn::dense_ids_first) {
    store_.find<kGroup>(hash, keys, runs, SearchIn::dense_ids_first, found);
    return visit_found();
  }
  ProbeAhead<kGroup> probe(hash, store_.views(), keys, runs, found);
  probe.step();
  fetch(0);
  for (u64 start = 0; start < runs; start += kGroup) {
    probe.step();
    fetch(start + kGroup);
    visit(start);
  }
}

// Runs read(hash, from, count) for every piece of the ids, in tasks of `task_ids` ids that the pool
// shares. Locks are held from one piece to the next unless a writer waits for them: to take all 64
// for each piece would be a tenth of a lookup. Rows may be exchanged with those of a table with
// another key until the locks are taken: then they are those of other shards.
void RowReader::each_piece(const i64* ids, u64 n, u64 task_ids, const auto& read) const {
  parallel_for(i64(piece_count(n, task_ids)), [&](i64 task) {
    const u64 start = u64(task) * task_ids, end = std::min(n, start + task_ids);
    const TrimAfter trim(store_.arena());
    for (u64 from = start; from < end;) {
      const u64 key = store_.slot_key();
      const SlotHash hash(key);
      ReadLocks hold(store_.shards(), shards_of(hash, ids + from, end - from));
      while (from < end && store_.slot_key() == key) {
        read(hash, from, std::min(kReadIds, end - from));
        from += kReadIds;
        if (from < end) hold.give_way();
      }
    }
    finish_streaming();
  });
}

// A large call on a table whose rows lie far apart finds the rows of all ids before it reads any: a
// cache holds the page tables of the index, or those of the rows, but not both. Locks are let go
// between the passes, so rows are searched again where keys came or went since the first began.
template <class Visitor>
void RowReader::visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const {
  static thread_local Buffer<u32> room;
  store_.arena().check();
  const RunAlone alone(n < kAloneIds);
  const bool far = n >= kReadIds && rows_are_far_apart();
  // Pages of a file are given back without locks: after each piece.
  const u64 size = store_.arena().in_file() ? kReadIds : task_ids;
  const u64 found_at = store_.changes();
  u32* const found = Visitor::reads_rows() && far && n >= kTwoPassIds ? room.ensure(n) : nullptr;
  if (found != nullptr) {
    each_piece(ids, n, size, [&](const SlotHash& hash, u64 from, u64 count) {
      find_piece(hash, ids + from, count, found + from);
    });
  }
  each_piece(ids, n, size, [&](const SlotHash& hash, u64 from, u64 count) {
    const u32* const known =
        found != nullptr && store_.changes() == found_at ? found + from : nullptr;
    if (far) return visit_piece<kLargeProbeGroup>(hash, ids + from, from, count, known, visitor);
    visit_piece<kProbeGroup>(hash, ids + from, from, count, nullptr, visitor);
  });
  room.keep_at_most(kKeepBytes);
}

struct RowReader::LookupVisitor {
  const RowValues& values;
  const LookupRequest& request;
  const LookupOutput& output;
  CopyFunction copy;
  u64 bytes;  // of a row, that a lookup reads

  static constexpr bool reads_rows() { return true; }
  const u8* locate(const Arena::View& arena, u32 row) const { return arena.row(row); }
  void fetch(const u8* data, u32) const { fetch_bytes(data, bytes); }
  void visit(u64 from, const Found& found) const {
    const auto [data, rows, places, n] = found;
    const bool zeros = request.missing == Missing::zeros;
    if (output.rows != nullptr)
      found.each_place([&](u64 place, u64 i) { output.rows[from + place] = found.rows[i]; });
    if (output.found != nullptr)
      found.each_place(
          [&](u64 place, u64 i) { output.found[from + place] = found.data[i] != nullptr; });
    const int dim = values.layout().dim;
    if (values.layout().plain && (zeros || std::find(data, data + n, nullptr) == data + n))
      return copy({data, places, n, dim, output.values + from * u64(dim)});
    found.each_place([&](u64 place, u64 i) { visit_one(from + place, found.data[i]); });
  }
  void visit_one(u64 i, const u8* row) const {
    float* target = output.values + i * values.dim();
    if (row != nullptr) {
      values.read(row, request.step, target);
    } else if (request.missing == Missing::zeros) {
      std::memset(target, 0, sizeof(float) * values.dim());
    } else {
      values.start(u64(request.ids[i]), target);
      if (!values.layout().plain)
        values.read(reinterpret_cast<const u8*>(target), request.step, target);
    }
  }
};

void RowReader::lookup(const LookupRequest& request, const LookupOutput& output) const {
  const CallScope scope;
  const RowLayout& layout = values_.layout();
  const bool reused = output.memory == OutputMemory::reused;
  const u64 n = request.n, out_row_bytes = sizeof(float) * values_.dim();
  const u64 read_bytes = layout.serving() ? u64(layout.row_bytes) : out_row_bytes;
  const Isa isa = active_isa();
  const CopyFunction copy = reused && n * out_row_bytes >= kStreamBytes
                                ? stream_function(isa, layout.dim, output.values)
                                : copy_function(isa);
  const u64 fresh_row_bytes = reused ? 0 : out_row_bytes;
  ask_for_huge_pages(output.values, n * fresh_row_bytes);
  visit(request.ids, n, task_ids(n, fresh_row_bytes),
        LookupVisitor{values_, request, output, copy, read_bytes});
}

struct RowReader::ContainsVisitor {
  u8* out;

  // Whether there is a row needs none: those in a file stay there.
  static constexpr bool reads_rows() { return false; }
  const u8* locate(const Arena::View&, u32) const { return nullptr; }
  void fetch(const u8*, u32) const {}
  void visit(u64 from, const Found& found) const {
    found.each_place([&](u64 place, u64 i) { out[from + place] = found.rows[i] != kNoRow; });
  }
};

void RowReader::contains(const i64* ids, u64 n, u8* out) const {
  const CallScope scope;
  visit(ids, n, task_ids(n, 0), ContainsVisitor{out});
}

void RowReader::copy_entry(u32 row, float* rows, float* states, i64* time) const {
  values_.copy(store_.arena().row(row), rows, states);
  *time = store_.stamp_of(row);
}

struct RowReader::EntriesVisitor {
  const RowReader& reader;
  u8* found;
  float* rows;
  float* states;
  i64* times;

  static constexpr bool reads_rows() { return true; }
  const u8* locate(const Arena::View& arena, u32 row) const { return arena.row(row); }
  void fetch(const u8*, u32 row) const { reader.store_.fetch_row(row); }
  void visit(u64 from, const Found& found) const {
    found.each_place([&](u64 place, u64 i) { visit_one(from + place, found.rows[i]); });
  }
  void visit_one(u64 i, u32 row) const {
    const u64 dim = reader.values_.dim(), state = reader.values_.state_floats();
    found[i] = row != kNoRow;
    if (row != kNoRow) return reader.copy_entry(row, rows + i * dim, states + i * state, times + i);
    std::memset(rows + i * dim, 0, sizeof(float) * dim);
    std::memset(states + i * state, 0, sizeof(float) * state);
    times[i] = 0;
  }
};

void RowReader::entries(const i64* ids, u64 n, u8* found, float* rows, float* states,
                        i64* times) const {
  const CallScope scope;
  visit(ids, n, task_ids(n, 0), EntriesVisitor{*this, found, rows, states, times});
}

ScanStep RowReader::scan(u64 cursor, u64 room, i64* ids, float* rows, float* states,
                         i64* times) const {
  static thread_local std::vector<KeyRow> found;
  const CallScope scope;
  store_.arena().check();
  ScanStep step{0, cursor, false, 0};
  Cursor at(cursor);
  while (step.rows < room) {
    const TrimAfter trim(store_.arena());
    const ReadLocks hold(store_.shards(), u64(1) << at.shard);
    found.clear();
    bool shard_done = false;
    const u64 left = room - step.rows;
    const u64 next = store_.shard(at.shard).index.scan(at.position, std::min(kScanRows, left),
                                                       found, shard_done);
    if (found.size() > left) {  // one home bucket with more keys than there is room
      if (step.rows == 0) step.needed = found.size();
      return step;
    }
    store_.each_fetched(found, [&](const KeyRow& entry) {
      ids[step.rows] = i64(entry.key);
      copy_entry(entry.row, rows + step.rows * values_.dim(),
                 states + step.rows * values_.state_floats(), times + step.rows);
      ++step.rows;
    });
    step.done = !at.move_to(next, shard_done);
    if (step.done) return step;
    step.cursor = at.number();
  }
  return step;
}

}  // namespace hedgerow
