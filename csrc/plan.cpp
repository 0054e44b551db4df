// Splits a batch by shard with a stable counting sort and groups equal ids with a small hash table.
#include "plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "bucket.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kSplitIds = 16384;           // ids one task splits
constexpr u64 kKeepBytes = u64(32) << 20;  // of one buffer, between calls

u64 pieces(u64 n, u64 size) { return (n + size - 1) / size; }

}  // namespace

void Plan::split(const i64* ids, u64 n, u64 tile_ids) {
  using Counts = std::array<u32, kShards>;
  const u64 tasks = pieces(n, kSplitIds);
  std::vector<Counts> at(tasks);
  parallel_for(i64(tasks), [&](i64 task) {
    Counts counts{};
    const u64 end = std::min(n, u64(task + 1) * kSplitIds);
    for (u64 i = u64(task) * kSplitIds; i < end; ++i) ++counts[shard_of(slot_hash(u64(ids[i])))];
    at[task] = counts;
  });
  u32 total = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    starts_[shard] = total;
    for (Counts& counts : at) total += std::exchange(counts[shard], total);
  }
  starts_[kShards] = total;
  ids_ = n;
  tile_ids_ = tile_ids;
  tiles_ = pieces(n, tile_ids);
  tile_from_.ensure(kShards * (tiles_ + 1));
  groups_.ensure(n);
  order_.ensure(n);
  Keyed* keyed = keyed_.ensure(n);
  parallel_for(i64(tasks), [&](i64 task) {
    Counts& next = at[task];
    const u64 end = std::min(n, u64(task + 1) * kSplitIds);
    for (u64 i = u64(task) * kSplitIds; i < end; ++i) {
      const u64 hash = slot_hash(u64(ids[i]));
      keyed[next[shard_of(hash)]++] = {u64(ids[i]), u32(i), u32(hash)};
    }
  });
}

void Plan::group(int shard) {
  static thread_local Buffer<u32> table_room, member_room;
  const u64 from = starts_[shard], n = starts_[shard + 1] - from;
  u32* const tile_from = tile_from_.data() + u64(shard) * (tiles_ + 1);
  group_count_[shard] = 0;
  if (n == 0) return void(std::fill_n(tile_from, tiles_ + 1, 0));
  const Keyed* keyed = keyed_.data() + from;
  Group* groups = groups_.data() + from;
  u32* member_of = member_room.ensure(n);
  const u64 slots = std::bit_ceil(2 * n), mask = slots - 1;
  u32* table = table_room.ensure(slots);
  std::fill_n(table, slots, kNoRow);
  u32 count = 0;
  u64 tile = 0;
  for (u64 i = 0; i < n; ++i) {
    const u64 key = keyed[i].key;
    u64 slot = keyed[i].hash & mask;
    while (table[slot] != kNoRow && groups[table[slot]].key != key) slot = (slot + 1) & mask;
    if (table[slot] == kNoRow) {
      while (tile * tile_ids_ <= keyed[i].position) tile_from[tile++] = count;
      table[slot] = count;
      groups[count++] = {key, 0, 0, kNoRow, kNoRow};
    }
    member_of[i] = table[slot];
    ++groups[table[slot]].count;
  }
  while (tile <= tiles_) tile_from[tile++] = count;
  u32 next = u32(from);
  for (u32 g = 0; g < count; ++g) {
    groups[g].first = next;
    next += groups[g].count;
    groups[g].count = 0;  // counted again as occurrences are placed
  }
  u32* order = order_.data();
  for (u64 i = 0; i < n; ++i) {
    Group& group = groups[member_of[i]];
    order[group.first + group.count++] = keyed[i].position;
  }
  group_count_[shard] = count;
  table_room.keep_at_most(kKeepBytes);
  member_room.keep_at_most(kKeepBytes);
}

void Plan::start_ranks() { std::fill_n(marks_.ensure(ids_), ids_, u8(0)); }

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
}

Plan& Plan::of_this_thread() {
  static thread_local Plan plan;
  return plan;
}

}  // namespace hedgerow
