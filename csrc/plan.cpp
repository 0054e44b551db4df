// Splits a batch by shard with stable counting sorts of its runs and groups equal ids with a small
// hash table.
#include "plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "bucket.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kSplitIds = 16384;           // ids one task splits
constexpr u64 kKeepBytes = u64(32) << 20;  // of one buffer, between calls

u64 pieces(u64 n, u64 size) { return (n + size - 1) / size; }

}  // namespace

// Sorts the runs of one task by shard, in room that stays in its cache.
void Plan::split_task(const SlotHash& slot_hash, const i64* ids, u64 from, u64 count, Part& part) {
  static thread_local Buffer<Run> room;
  static thread_local Buffer<u8> shard_room;
  const SlotHash hash_of = slot_hash;
  Run* const runs = room.ensure(kSplitIds);
  u8* const shards = shard_room.ensure(kSplitIds);
  u32 next[kShards] = {};
  std::fill_n(part.ids, kShards, 0u);
  u64 found = 0;
  for (u64 i = 0; i < count; ++found) {
    fetch_line(runs_.data() + from + found);  // a store would wait for its line
    const u64 key = u64(ids[from + i]), hash = hash_of(key);
    u64 end = i + 1;
    const u64 most = std::min(count, i + Run::kLongest);
    while (end < most && u64(ids[from + end]) == key) ++end;
    runs[found] = {key, u32(from + i), u32(end - i), u32(hash) & 0x7ffffffu};
    shards[found] = u8(shard_of(hash));
    ++next[shards[found]];
    part.ids[shards[found]] += u32(end - i);
    i = end;
  }
  u32 total = u32(from);
  for (int shard = 0; shard < kShards; ++shard) {
    part.from[shard] = total;
    total += std::exchange(next[shard], total);
  }
  part.from[kShards] = total;
  for (u64 i = 0; i < found; ++i) runs_.data()[next[shards[i]]++] = runs[i];
}

void Plan::start(u64 n, u64 tile_ids) {
  ids_ = n;
  tile_ids_ = tile_ids;
  tiles_ = pieces(n, tile_ids);
  tile_from_.ensure(kShards * (tiles_ + 1));
  groups_.ensure(n);
  order_.ensure(n);
}

void Plan::split(const SlotHash& hash, const i64* ids, u64 n, u64 tile_ids) {
  start(n, tile_ids);
  has_rows_ = false;
  tasks_ = pieces(n, kSplitIds);
  runs_.ensure(n);
  parts_.ensure(tasks_);
  parallel_for(i64(tasks_), [&](i64 task) {
    const u64 from = u64(task) * kSplitIds;
    split_task(hash, ids, from, std::min(kSplitIds, n - from), parts_.data()[task]);
  });
  u64 total = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    starts_[shard] = total;
    for (u64 task = 0; task < tasks_; ++task) total += parts_.data()[task].ids[shard];
  }
  starts_[kShards] = total;
}

// The group of every run of a shard, found in a small hash table. Returns how many groups there
// are.
u32 Plan::find_groups(int shard, u32* group_of, u32* table, u64 mask) {
  Group* groups = groups_.data() + starts_[shard];
  u32* const tile_from = tile_from_.data() + u64(shard) * (tiles_ + 1);
  u64 tile = 0;
  u32 count = 0;
  for (u64 task = 0; task < tasks_; ++task) {
    for (const Run& run : runs_of(task, shard)) {
      u64 slot = run.hash & mask;
      while (table[slot] != kNoRow && groups[table[slot]].key != run.key) slot = (slot + 1) & mask;
      if (table[slot] == kNoRow) {
        while (tile * tile_ids_ <= run.position) tile_from[tile++] = count;
        groups[count] = {run.key, 0, 0, kNoRow, kNoRow};
        table[slot] = count++;
      }
      *group_of++ = table[slot];
      groups[table[slot]].count += run.length;
    }
  }
  while (tile <= tiles_) tile_from[tile++] = count;
  return count;
}

void Plan::group(int shard) {
  static thread_local Buffer<u32> table_room, group_room;
  u64 runs = 0;
  for (u64 task = 0; task < tasks_; ++task) runs += runs_of(task, shard).size();
  const u64 slots = std::bit_ceil(2 * runs);
  u32* table = table_room.ensure(slots);
  u32* group_of = group_room.ensure(runs);
  std::fill_n(table, slots, kNoRow);
  const u32 count = find_groups(shard, group_of, table, slots - 1);
  Group* groups = groups_.data() + starts_[shard];
  u32 next = u32(starts_[shard]);
  for (u32 g = 0; g < count; ++g) {
    groups[g].first = next;
    next += groups[g].count;
    groups[g].count = 0;  // counted again as occurrences are placed
  }
  u32* order = order_.data();
  for (u64 task = 0; task < tasks_; ++task) {
    for (const Run& run : runs_of(task, shard)) {
      Group& group = groups[*group_of++];
      for (u32 i = 0; i < run.length; ++i) order[group.first + group.count++] = run.position + i;
    }
  }
  group_count_[shard] = count;
  table_room.keep_at_most(kKeepBytes);
  group_room.keep_at_most(kKeepBytes);
}

// The distinct ids in the order in which they first occur, and the one of every id. Returns how
// many there are. Rows are numbers from 0 on, so those of a small table are places in `table`
// themselves; others are hashed with a secret key, since an id's row can be chosen by whoever
// chooses the order in which ids are born.
u32 Plan::find_known(const i64* ids, u64 n, const u32* rows, u32 most, KnownGroup* found,
                     u32* member_of) {
  static thread_local Buffer<u32> table_room;
  const u64 slots = std::bit_ceil(2 * n), mask = slots - 1;
  u32* const table = table_room.ensure(slots);
  std::fill_n(table, slots, kNoRow);
  u32 count = 0;
  const auto add = [&](u64 i, u64 slot) {
    found[count] = {u64(ids[i]), rows[i], 1, u32(i), 0};
    member_of[i] = table[slot] = count++;
  };
  if (most < slots) {
    for (u64 i = 0; i < n; ++i) {
      const u32 member = table[rows[i]];
      if (member == kNoRow) {
        add(i, rows[i]);
      } else {
        ++found[member_of[i] = member].count;
      }
    }
    return count;
  }
  const SlotHash hash = process_hash();
  for (u64 i = 0; i < n; ++i) {
    u64 slot = hash(rows[i]) & mask;
    while (table[slot] != kNoRow && found[table[slot]].row != rows[i]) slot = (slot + 1) & mask;
    if (table[slot] == kNoRow) {
      add(i, slot);
    } else {
      ++found[member_of[i] = table[slot]].count;
    }
  }
  return count;
}

// Writes groups shard by shard; `placed` becomes where each of the found ones is.
void Plan::place_groups(std::span<const KnownGroup> found, u32* placed) {
  u32 ids[kShards] = {};
  u64 tile[kShards] = {};
  std::fill_n(group_count_, kShards, 0u);
  for (const KnownGroup& one : found) ids[one.shard] += one.count;
  u32 next[kShards];
  starts_[0] = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    next[shard] = u32(starts_[shard]);
    starts_[shard + 1] = starts_[shard] + ids[shard];
  }
  for (const KnownGroup& one : found) {
    u32* const tile_from = tile_from_.data() + u64(one.shard) * (tiles_ + 1);
    u32& count = group_count_[one.shard];
    while (tile[one.shard] * tile_ids_ <= one.position) tile_from[tile[one.shard]++] = count;
    *placed = u32(starts_[one.shard]) + count++;
    groups_.data()[*placed++] = {one.key, next[one.shard], 0, one.row, kNoRow};
    next[one.shard] += one.count;
  }
  for (int shard = 0; shard < kShards; ++shard) {
    u32* const tile_from = tile_from_.data() + u64(shard) * (tiles_ + 1);
    while (tile[shard] <= tiles_) tile_from[tile[shard]++] = group_count_[shard];
  }
}

bool Plan::group_known(const SlotHash& hash, const i64* ids, u64 n, u64 tile_ids, const u32* rows) {
  static thread_local Buffer<KnownGroup> found_room;
  static thread_local Buffer<u32> member_room, placed_room;
  if (n == 0 || n > kSplitIds) return false;
  u32 most = 0;
  for (u64 i = 0; i < n; ++i) most = std::max(most, rows[i]);
  if (most == kNoRow) return false;
  start(n, tile_ids);
  has_rows_ = true;
  KnownGroup* const found = found_room.ensure(n);
  u32* const member_of = member_room.ensure(n);
  const u32 count = find_known(ids, n, rows, most, found, member_of);
  for (u32 g = 0; g < count; ++g) found[g].shard = u32(shard_of(hash(found[g].key)));
  u32* const placed = placed_room.ensure(count);
  place_groups({found, count}, placed);
  for (u64 i = 0; i < n; ++i) {
    Group& group = groups_.data()[placed[member_of[i]]];
    order_.data()[group.first + group.count++] = u32(i);
  }
  return true;
}

void Plan::start_ranks() { flags(ids_); }

u32 Plan::rank() {
  const u8* marks = marks_.data();
  u32* ranks = ranks_.ensure(ids_);
  u32 next = 0;
  for (u64 i = 0; i < ids_; ++i) {
    ranks[i] = next;
    next += marks[i];
  }
  return next;
}

void Plan::let_go() { keep_at_most(0); }

void Plan::trim() { keep_at_most(kKeepBytes); }

void Plan::keep_at_most(u64 bytes) {
  runs_.keep_at_most(bytes);
  groups_.keep_at_most(bytes);
  order_.keep_at_most(bytes);
  marks_.keep_at_most(bytes);
  ranks_.keep_at_most(bytes);
  tile_from_.keep_at_most(bytes);
  parts_.keep_at_most(bytes);
}

Plan& Plan::of_this_thread() {
  static thread_local Plan plan;
  return plan;
}

}  // namespace hedgerow
