// Reading verbs of the table: grouped, prefetched, in input order.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cursor.h"
#include "huge_heap.h"
#include "pool.h"
#include "probe.h"
#include "row_copy.h"
#include "table.h"

namespace hedgerow {
namespace {

constexpr u64 kReadIds = 2048;               // ids read under one hold of the shards' locks
constexpr u64 kGroup = 16;                   // ids in flight between two stages of the pipeline
constexpr u64 kGroupsAhead = 4;              // groups whose homes are fetched before a visit
constexpr u64 kStreamBytes = u64(32) << 20;  // of output: more than stays in most caches
constexpr u64 kScanRows = 1024;              // rows copied under one hold of a lock

// Shared locks on the shards of a mask, taken in ascending order (as `clear` does: no deadlock).
class ReadLocks {
 public:
  ReadLocks(const std::vector<std::unique_ptr<Shard>>& shards, u64 mask)
      : shards_(shards), mask_(mask) {
    for (u64 left = mask_; left != 0; left &= left - 1)
      shards_[__builtin_ctzll(left)]->lock.lock_shared();
  }
  ~ReadLocks() {
    for (u64 left = mask_; left != 0; left &= left - 1)
      shards_[__builtin_ctzll(left)]->lock.unlock_shared();
  }

 private:
  const std::vector<std::unique_ptr<Shard>>& shards_;
  u64 mask_;
};

// The shards of some keys, as bits. Many keys have all of them.
u64 shards_of(const i64* keys, u64 n) {
  if (n >= 8 * kShards) return ~u64(0);
  u64 shards = 0;
  for (u64 i = 0; i < n; ++i) shards |= u64(1) << shard_of(slot_hash(u64(keys[i])));
  return shards;
}

u64 piece_count(u64 n, u64 size) { return (n + size - 1) / size; }

}  // namespace

// Groups of ids in four overlapped stages: the homes of one group are fetched, those of a group
// some way before are searched, the rows of the group before that are fetched, those of the one
// before are visited.
template <class Visitor>
void Table::visit_piece(const i64* keys, u64 from, u64 count, const Visitor& visitor) const {
  const Probe probe = probe_for(active_isa());
  const Bucket* homes[kReadIds];
  u32 rows[kReadIds];
  const u8* data[kReadIds];  // of the rows; null: absent
  const TrimAfter trim(arena_);
  const ReadLocks hold(shards_, shards_of(keys, count));
  const auto group = [&](u64 start) {
    const u64 size = start < count ? std::min(kGroup, count - start) : 0;
    return ProbeArgs{views_, keys + start, size, homes + start, rows + start};
  };
  const auto fetch_rows = [&](const ProbeArgs& args, u64 beyond) {
    find_beyond(args, beyond);
    const u8** const at = data + (args.rows - rows);
    for (u64 i = 0; i < args.n; ++i) {
      at[i] = args.rows[i] == kNoRow ? nullptr : arena_.row(args.rows[i]);
      visitor.fetch(at[i], args.rows[i]);
    }
  };
  for (u64 start = 0; start < kGroupsAhead * kGroup; start += kGroup) probe.fetch(group(start));
  const u64 first = probe.find(group(0));
  u64 beyond = probe.find(group(kGroup));
  fetch_rows(group(0), first);
  for (u64 start = 0; start < count; start += kGroup) {
    probe.fetch(group(start + kGroupsAhead * kGroup));
    const u64 later = probe.find(group(start + 2 * kGroup));
    fetch_rows(group(start + kGroup), std::exchange(beyond, later));
    visitor.visit(from + start, data + start, rows + start, group(start).n);
  }
}

// Tasks of `task_ids` ids go to the pool; a piece of a task is read under one hold of locks.
template <class Visitor>
void Table::visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const {
  arena_.check();
  const RunAlone alone(n < kAloneIds);
  parallel_for(i64(piece_count(n, task_ids)), [&](i64 task) {
    const u64 end = std::min(n, u64(task + 1) * task_ids);
    for (u64 from = u64(task) * task_ids; from < end; from += kReadIds)
      visit_piece(ids + from, from, std::min(kReadIds, end - from), visitor);
    finish_streaming();
  });
}

// Ids one thread reads before another takes over. A thread that first touches a huge page of fresh
// output waits while the kernel clears it; two threads on one page would both wait.
u64 Table::task_ids(u64 n, bool reused) const {
  const u64 row_bytes = sizeof(float) * u64(layout_.dim);
  const bool many_pages = n * row_bytes >= 4 * kHugePage * u64(thread_count());
  if (reused || !many_pages) return kReadIds;
  return std::max(u64(1), kHugePage / row_bytes / kReadIds) * kReadIds;
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

void Table::lookup(const i64* ids, u64 n, Missing missing, i64 step, float* out,
                   bool reused) const {
  struct Reader {
    const Table& table;
    const i64* ids;
    Missing missing;
    i64 step;
    float* out;
    CopyFunction copy;
    int bytes;  // of a row, that a lookup reads

    void fetch(const u8* row, u32) const { fetch_bytes(row, u64(bytes)); }
    void visit(u64 from, const u8* const* data, const u32*, u64 count) const {
      const bool zeros = missing == Missing::zeros;
      if (table.layout_.plain && (zeros || std::find(data, data + count, nullptr) == data + count))
        return copy({data, count, table.layout_.dim, out + from * u64(table.layout_.dim)});
      for (u64 i = 0; i < count; ++i) visit_one(from + i, data[i]);
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
  if (!reused) ask_for_huge_pages(out, n * sizeof(float) * u64(layout_.dim));
  visit(ids, n, task_ids(n, reused), Reader{*this, ids, missing, step, out, copy, bytes});
}

void Table::contains(const i64* ids, u64 n, u8* out) const {
  struct Reader {
    u8* out;
    void fetch(const u8*, u32) const {}
    void visit(u64 from, const u8* const*, const u32* rows, u64 count) const {
      for (u64 i = 0; i < count; ++i) out[from + i] = rows[i] != kNoRow;
    }
  };
  const CallScope scope;
  visit(ids, n, kReadIds, Reader{out});
}

void Table::copy_row(const u8* row, float* values, float* states) const {
  if (layout_.serving) return decode_row(row, values);
  std::memcpy(values, row, sizeof(float) * layout_.dim);
  std::memcpy(states, row + sizeof(float) * layout_.dim, sizeof(float) * layout_.state_floats);
}

void Table::copy_entry(u32 row, float* rows, float* states, i64* time) const {
  copy_row(arena_.row(row), rows, states);
  *time = *arena_.time(row);
}

void Table::entries(const i64* ids, u64 n, u8* found, float* rows, float* states,
                    i64* times) const {
  struct Reader {
    const Table& table;
    u8* found;
    float* rows;
    float* states;
    i64* times;

    void fetch(const u8* data, u32 row) const {
      if (data != nullptr) table.fetch_row(row);
    }
    void visit(u64 from, const u8* const*, const u32* rows, u64 count) const {
      for (u64 i = 0; i < count; ++i) visit_one(from + i, rows[i]);
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
  visit(ids, n, kReadIds, Reader{*this, found, rows, states, times});
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
  MemoryUse use{0, 0, 0};
  for (int shard = 0; shard < kShards; ++shard) {
    const ReadLocks hold(shards_, u64(1) << shard);
    use.index_bytes += shards_[shard]->index.bytes();
    use.row_bytes +=
        shards_[shard]->index.size() * (u64(layout_.row_bytes) + arena_.beside_bytes());
  }
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
