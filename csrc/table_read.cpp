// Reading verbs of the table: grouped, prefetched, in input order.
#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cursor.h"
#include "huge_heap.h"
#include "id_runs.h"
#include "pool.h"
#include "probe.h"
#include "read_locks.h"
#include "row_copy.h"
#include "table.h"

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

}  // namespace

// Rows of distinct keys, at most kFindIds, with `near` by the arrays of dense ids first. The caller
// holds the locks of their shards.
template <u64 kGroup>
void Table::find_rows(const SlotHash& hash, const i64* keys, u64 n, bool near, u32* rows) const {
  const auto search = [&](const i64* some, u64 count, u32* found) {
    ProbeAhead<kGroup> probe(hash, views_, some, count, found);
    for (u64 i = 0; i < count; i += kGroup) probe.step();
  };
  if (!near) return search(keys, n, rows);
  u32 left[kFindIds], found[kFindIds];
  i64 far[kFindIds];
  const u64 others = near_.find(keys, n, rows, left);
  for (u64 i = 0; i < others; ++i) far[i] = keys[left[i]];
  search(far, others, found);
  for (u64 i = 0; i < others; ++i) {
    rows[left[i]] = found[i];
    if (found[i] != kNoRow) near_.learn(u64(far[i]), found[i]);
  }
}

template void Table::find_rows<kProbeGroup>(const SlotHash&, const i64*, u64, bool, u32*) const;

bool Table::near_serves(const SlotHash& hash, const i64* keys, u64 n) const {
  return near_.serves(keys, n) && !of_one_shard(hash, keys, n);
}

// Whether rows are short and lie on many more pages than the translation cache holds, so that a
// lookup waits for page tables most of the time.
bool Table::is_far_apart() const {
  if (arena_.in_file() || sizeof(float) * u64(layout_.dim) > kShortBytes) return false;
  return u64(arena_.end()) * u64(layout_.stride) >= kFarBytes;
}

// The first of two passes over a piece: rows[i] is the row of its run `i`, or kNoRow.
void Table::find_piece(const SlotHash& hash, const i64* ids, u64 count, u32* rows) const {
  const IdRuns<kReadIds> distinct(ids, count);
  const auto [keys, places, runs] = distinct.view();
  searched_.fetch_add(runs, std::memory_order_relaxed);
  find_rows<kLargeProbeGroup>(hash, keys, runs, near_serves(hash, keys, runs), rows);
}

// Each run of equal ids is searched once, unless `known` has the rows of the runs. The rows of a
// group are fetched while those of the one before are visited, and where they have to be searched,
// the homes of later groups are, too.
template <u64 kGroup, class Visitor>
void Table::visit_piece(const SlotHash& hash, const i64* ids, u64 from, u64 count, const u32* known,
                        const Visitor& visitor) const {
  const IdRuns<kReadIds> distinct(ids, count);
  const auto [keys, places, runs] = distinct.view();
  u32 found[kReadIds];
  const u32* const rows = known != nullptr ? known : found;
  const u8* data[2 * kGroup];  // as `locate` says; null: absent. Halves are used in turn
  const Arena::View arena = arena_.view();
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
  searched_.fetch_add(runs, std::memory_order_relaxed);
  if (near_serves(hash, keys, runs)) {
    find_rows<kGroup>(hash, keys, runs, true, found);
    return visit_found();
  }
  ProbeAhead<kGroup> probe(hash, views_, keys, runs, found);
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
void Table::each_piece(const i64* ids, u64 n, u64 task_ids, const auto& read) const {
  parallel_for(i64(piece_count(n, task_ids)), [&](i64 task) {
    const u64 start = u64(task) * task_ids, end = std::min(n, start + task_ids);
    const TrimAfter trim(arena_);
    for (u64 from = start; from < end;) {
      const u64 key = slot_key();
      const SlotHash hash(key);
      ReadLocks hold(shards_, shards_of(hash, ids + from, end - from));
      while (from < end && slot_key() == key) {
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
void Table::visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const {
  static thread_local Buffer<u32> room;
  arena_.check();
  const RunAlone alone(n < kAloneIds);
  const bool far = n >= kReadIds && is_far_apart();
  // Pages of a file are given back without locks: after each piece.
  const u64 size = arena_.in_file() ? kReadIds : task_ids;
  const u64 found_at = changes();
  u32* const found = Visitor::reads_rows() && far && n >= kTwoPassIds ? room.ensure(n) : nullptr;
  if (found != nullptr) {
    each_piece(ids, n, size, [&](const SlotHash& hash, u64 from, u64 count) {
      find_piece(hash, ids + from, count, found + from);
    });
  }
  each_piece(ids, n, size, [&](const SlotHash& hash, u64 from, u64 count) {
    const u32* const known = found != nullptr && changes() == found_at ? found + from : nullptr;
    if (far) return visit_piece<kLargeProbeGroup>(hash, ids + from, from, count, known, visitor);
    visit_piece<kProbeGroup>(hash, ids + from, from, count, nullptr, visitor);
  });
  room.keep_at_most(kKeepBytes);
}

// Ids one thread reads before another takes over: eight times each, where there are so many. A
// thread that first touches a huge page of fresh output waits while the kernel clears it; two
// threads on one page would both wait.
u64 Table::task_ids(u64 n, u64 fresh_row_bytes) const {
  const u64 threads = u64(thread_count());
  const bool many_pages = n * fresh_row_bytes >= 4 * kHugePage * threads;
  const u64 pieces = many_pages ? kHugePage / fresh_row_bytes / kReadIds
                                : std::min(n / (8 * threads * kReadIds), kTaskPieces);
  return std::max(u64(1), pieces) * kReadIds;
}

void Table::decode_row(const u8* row, float* out) const {
  for (const Segment& segment : layout_.segments)
    decode(segment.codec, row + segment.encoded_from, segment.dim, out + segment.first_column);
}

void Table::read_row(const u8* row, i64 step, float* out) const {
  if (layout_.serving) return decode_row(row, out);
  const float* values = reinterpret_cast<const float*>(row);
  if (layout_.plain) {
    std::memcpy(out, values, sizeof(float) * layout_.dim);
    return;
  }
  for (const Segment& segment : layout_.segments)
    view_forward(segment.codec, step, values + segment.first_column, segment.dim,
                 out + segment.first_column);
}

void Table::lookup(const i64* ids, u64 n, Missing missing, i64 step, float* out, bool reused,
                   u8* found, u32* rows) const {
  struct Reader {
    const Table& table;
    const i64* ids;
    Missing missing;
    i64 step;
    float* out;
    CopyFunction copy;
    int bytes;  // of a row, that a lookup reads
    u8* told;
    u32* known;

    static constexpr bool reads_rows() { return true; }
    const u8* locate(const Arena::View& arena, u32 row) const { return arena.row(row); }
    void fetch(const u8* data, u32) const { fetch_bytes(data, u64(bytes)); }
    void visit(u64 from, const Found& found) const {
      const auto [data, rows, places, n] = found;
      const bool zeros = missing == Missing::zeros;
      if (known != nullptr)
        found.each_place([&](u64 place, u64 i) { known[from + place] = found.rows[i]; });
      if (told != nullptr)
        found.each_place([&](u64 place, u64 i) { told[from + place] = found.data[i] != nullptr; });
      if (table.layout_.plain && (zeros || std::find(data, data + n, nullptr) == data + n))
        return copy({data, places, n, table.layout_.dim, out + from * u64(table.layout_.dim)});
      found.each_place([&](u64 place, u64 i) { visit_one(from + place, found.data[i]); });
    }
    void visit_one(u64 i, const u8* row) const {
      float* target = out + i * u64(table.layout_.dim);
      if (row != nullptr) {
        table.read_row(row, step, target);
      } else if (missing == Missing::zeros) {
        std::memset(target, 0, sizeof(float) * table.layout_.dim);
      } else {
        table.start_values(u64(ids[i]), target);
        if (!table.layout_.plain) table.read_row(reinterpret_cast<const u8*>(target), step, target);
      }
    }
  };
  const CallScope scope;
  const int bytes = layout_.serving ? layout_.row_bytes : 4 * layout_.dim;
  const Isa isa = active_isa();
  const CopyFunction copy = reused && n * sizeof(float) * u64(layout_.dim) >= kStreamBytes
                                ? stream_function(isa, layout_.dim, out)
                                : copy_function(isa);
  const u64 fresh_row_bytes = reused ? 0 : sizeof(float) * u64(layout_.dim);
  ask_for_huge_pages(out, n * fresh_row_bytes);
  visit(ids, n, task_ids(n, fresh_row_bytes),
        Reader{*this, ids, missing, step, out, copy, bytes, found, rows});
}

void Table::contains(const i64* ids, u64 n, u8* out) const {
  struct Reader {
    u8* out;
    // Whether there is a row needs none: those in a file stay there.
    static constexpr bool reads_rows() { return false; }
    const u8* locate(const Arena::View&, u32) const { return nullptr; }
    void fetch(const u8*, u32) const {}
    void visit(u64 from, const Found& found) const {
      found.each_place([&](u64 place, u64 i) { out[from + place] = found.rows[i] != kNoRow; });
    }
  };
  const CallScope scope;
  visit(ids, n, task_ids(n, 0), Reader{out});
}

void Table::copy_row(const u8* row, float* values, float* states) const {
  if (layout_.serving) return decode_row(row, values);
  std::memcpy(values, row, sizeof(float) * layout_.dim);
  std::memcpy(states, row + sizeof(float) * layout_.dim, sizeof(float) * layout_.state_floats);
}

void Table::copy_entry(u32 row, float* rows, float* states, i64* time) const {
  copy_row(arena_.row(row), rows, states);
  *time = stamp_of(row);
}

void Table::entries(const i64* ids, u64 n, u8* found, float* rows, float* states,
                    i64* times) const {
  struct Reader {
    const Table& table;
    u8* found;
    float* rows;
    float* states;
    i64* times;

    static constexpr bool reads_rows() { return true; }
    const u8* locate(const Arena::View& arena, u32 row) const { return arena.row(row); }
    void fetch(const u8*, u32 row) const { table.fetch_row(row); }
    void visit(u64 from, const Found& found) const {
      found.each_place([&](u64 place, u64 i) { visit_one(from + place, found.rows[i]); });
    }
    void visit_one(u64 i, u32 row) const {
      const u64 dim = u64(table.layout_.dim), state = u64(table.layout_.state_floats);
      found[i] = row != kNoRow;
      if (row != kNoRow)
        return table.copy_entry(row, rows + i * dim, states + i * state, times + i);
      std::memset(rows + i * dim, 0, sizeof(float) * dim);
      std::memset(states + i * state, 0, sizeof(float) * state);
      times[i] = 0;
    }
  };
  const CallScope scope;
  visit(ids, n, task_ids(n, 0), Reader{*this, found, rows, states, times});
}

u64 Table::size() const {
  const CallScope scope;
  u64 rows = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    const ReadLocks hold(shards_, u64(1) << shard);
    rows += shards_[shard]->index.size();
  }
  return rows;
}

MemoryUse Table::memory() const {
  const CallScope scope;
  const std::shared_lock uncleared(clearing_);
  MemoryUse use{0, 0, 0, arena_.ragged_bytes()};
  for (int shard = 0; shard < kShards; ++shard) {
    const std::lock_guard writing(shards_[shard]->writing);
    const ReadLocks hold(shards_, u64(1) << shard);
    use.index_bytes += shards_[shard]->index.bytes();
    use.row_bytes += shards_[shard]->index.size() * (u64(layout_.row_bytes) + Arena::kBesideBytes);
    for (const auto& [_, touched] : touched_) use.other_bytes += touched->bytes(shard);
  }
  const double heap_bytes = double(arena_.heap_bytes() + use.index_bytes);
  use.other_bytes += u64(HugeHeap::process().idle_share() * heap_bytes) + snapshot_.bytes();
  // Working memory of threads serves all tables: each is told its part.
  const double share = heap_bytes / std::max(1.0, double(memory_used()));
  use.other_bytes += u64(double(working_bytes.load()) * std::min(1.0, share));
  use.index_bytes += near_.bytes();
  const u64 taken = arena_.taken_bytes();
  use.slack_bytes = taken > use.row_bytes ? taken - use.row_bytes : 0;
  return use;
}

LoadStatistics Table::load() const {
  const CallScope scope;
  u64 rows = 0, slots = 0, longest = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    const ReadLocks hold(shards_, u64(1) << shard);
    rows += shards_[shard]->index.size();
    slots += shards_[shard]->index.bucket_count() * Bucket::kSlots;
    longest = std::max(longest, shards_[shard]->index.longest_search());
  }
  return {slots == 0 ? 0.0 : double(rows) / double(slots), longest};
}

ScanStep Table::scan(u64 cursor, u64 room, i64* ids, float* rows, float* states, i64* times) const {
  static thread_local std::vector<KeyRow> found;
  const CallScope scope;
  arena_.check();
  ScanStep step{0, cursor, false, 0};
  Cursor at(cursor);
  while (step.rows < room) {
    const TrimAfter trim(arena_);
    const ReadLocks hold(shards_, u64(1) << at.shard);
    found.clear();
    bool shard_done = false;
    const u64 left = room - step.rows;
    const u64 next =
        shards_[at.shard]->index.scan(at.position, std::min(kScanRows, left), found, shard_done);
    if (found.size() > left) {  // one home bucket with more keys than there is room
      if (step.rows == 0) step.needed = found.size();
      return step;
    }
    each_fetched(found, [&](const KeyRow& entry) {
      ids[step.rows] = i64(entry.key);
      copy_entry(entry.row, rows + step.rows * u64(layout_.dim),
                 states + step.rows * u64(layout_.state_floats), times + step.rows);
      ++step.rows;
    });
    step.done = !at.move_to(next, shard_done);
    if (step.done) return step;
    step.cursor = at.number();
  }
  return step;
}

}  // namespace hedgerow
