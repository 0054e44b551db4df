// Splits a batch by shard with stable counting sorts and groups equal ids with a small hash table.
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

// Every task sorts its own ids by shard, in room that stays in its cache.
void Plan::split(const i64* ids, u64 n, u64 tile_ids) {
  ids_ = n;
  tile_ids_ = tile_ids;
  tiles_ = pieces(n, tile_ids);
  tasks_ = pieces(n, kSplitIds);
  tile_from_.ensure(kShards * (tiles_ + 1));
  groups_.ensure(n);
  order_.ensure(n);
  keyed_.ensure(n);
  parts_.ensure(tasks_);
  parallel_for(i64(tasks_), [&](i64 task) {
    static thread_local Buffer<u64> hash_room;
    u64* hash = hash_room.ensure(kSplitIds);
    const u64 from = u64(task) * kSplitIds, count = std::min(kSplitIds, n - from);
    u32 next[kShards] = {};
    for (u64 i = 0; i < count; ++i) {
      __builtin_prefetch(keyed_.data() + from + i, 1);  // a store would wait for its line
      hash[i] = slot_hash(u64(ids[from + i]));
      ++next[shard_of(hash[i])];
    }
    u32 total = u32(from);
    for (int shard = 0; shard < kShards; ++shard) {
      parts_.data()[task].from[shard] = total;
      total += std::exchange(next[shard], total);
    }
    parts_.data()[task].from[kShards] = total;
    for (u64 i = 0; i < count; ++i)
      keyed_.data()[next[shard_of(hash[i])]++] = {u64(ids[from + i]), u32(from + i), u32(hash[i])};
  });
  u64 total = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    starts_[shard] = total;
    for (u64 task = 0; task < tasks_; ++task) total += ids_of(task, shard).size();
  }
  starts_[kShards] = total;
}

// The ids of a shard by group, in a small hash table. Returns how many groups there are.
u32 Plan::find_groups(int shard, u32* member_of, u32* table, u64 mask) {
  Group* groups = groups_.data() + starts_[shard];
  u32* const tile_from = tile_from_.data() + u64(shard) * (tiles_ + 1);
  u64 tile = 0;
  u32 count = 0, last = 0;
  for (u64 task = 0; task < tasks_; ++task) {
    for (const Keyed& keyed : ids_of(task, shard)) {
      if (count == 0 || groups[last].key != keyed.key) {  // ids often come in runs
        u64 slot = keyed.hash & mask;
        while (table[slot] != kNoRow && groups[table[slot]].key != keyed.key)
          slot = (slot + 1) & mask;
        if (table[slot] == kNoRow) {
          while (tile * tile_ids_ <= keyed.position) tile_from[tile++] = count;
          groups[count] = {keyed.key, 0, 0, kNoRow, kNoRow};
          table[slot] = count++;
        }
        last = table[slot];
      }
      *member_of++ = last;
      ++groups[last].count;
    }
  }
  while (tile <= tiles_) tile_from[tile++] = count;
  return count;
}

void Plan::group(int shard) {
  static thread_local Buffer<u32> table_room, member_room;
  const u64 n = starts_[shard + 1] - starts_[shard];
  const u64 slots = std::bit_ceil(2 * n);
  u32* table = table_room.ensure(slots);
  u32* member_of = member_room.ensure(n);
  std::fill_n(table, slots, kNoRow);
  const u32 count = find_groups(shard, member_of, table, slots - 1);
  Group* groups = groups_.data() + starts_[shard];
  u32 next = u32(starts_[shard]);
  for (u32 g = 0; g < count; ++g) {
    groups[g].first = next;
    next += groups[g].count;
    groups[g].count = 0;  // counted again as occurrences are placed
  }
  u32* order = order_.data();
  for (u64 task = 0; task < tasks_; ++task) {
    for (const Keyed& keyed : ids_of(task, shard)) {
      Group& group = groups[*member_of++];
      order[group.first + group.count++] = keyed.position;
    }
  }
  group_count_[shard] = count;
  table_room.keep_at_most(kKeepBytes);
  member_room.keep_at_most(kKeepBytes);
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

void Plan::trim() {
  keyed_.keep_at_most(kKeepBytes);
  groups_.keep_at_most(kKeepBytes);
  order_.keep_at_most(kKeepBytes);
  marks_.keep_at_most(kKeepBytes);
  ranks_.keep_at_most(kKeepBytes);
  tile_from_.keep_at_most(kKeepBytes);
  parts_.keep_at_most(kKeepBytes);
}

Plan& Plan::of_this_thread() {
  static thread_local Plan plan;
  return plan;
}

}  // namespace hedgerow
