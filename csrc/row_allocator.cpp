// Rows of erased keys come first, then a run of the arena.
#include "row_allocator.h"

#include <mutex>
#include <utility>

#include "each_shard.h"

namespace hedgerow {
namespace {

constexpr u32 kReturnRows = 256;  // shorter runs of unused rows are not worth a range in the arena

}  // namespace

// Rows that no erased key left are one run of the arena in the order of the batch: ids that came
// together lie together.
void RowAllocator::reserve(Plan& plan, u64 n) {
  Arena& arena = store_.arena();
  plan.start_ranks();
  for_each_shard(n, [&](int number) {
    if (plan.absent[number] == 0) return;
    Shard& shard = store_.shard(number);
    const std::lock_guard writing(shard.writing);
    for (Group& group : plan.groups(number)) {
      if (group.row != kNoRow) continue;
      if (shard.erased.size() != 0) {
        group.spare = shard.erased.take(arena);
      } else {
        plan.mark(group);
      }
    }
  });
  const u32 rows = plan.rank();
  const u32 first = rows == 0 ? 0 : arena.take(rows);
  plan.fresh = {first, rows};
  try {
    for_each_shard(n, [&](int number) {
      if (plan.absent[number] == 0) return;
      Shard& shard = store_.shard(number);
      const std::lock_guard writing(shard.writing);
      store_.make_room(number, shard.index.size() + shard.promised + plan.absent[number]);
      shard.promised += plan.promised[number] = plan.absent[number];
    });
  } catch (...) {
    if (rows != 0) arena.give_back(first, rows);
    plan.fresh = {};
    throw;
  }
  if (rows == 0) return;
  for_each_shard(n, [&](int number) {
    if (plan.absent[number] == 0) return;
    for (Group& group : plan.groups(number))
      if (group.row == kNoRow && group.spare == kNoRow) group.spare = first + plan.rank_of(group);
  });
}

// Runs of rows that were never touched go back to the arena: a list through them would make their
// pages resident.
void RowAllocator::release(Plan& plan) {
  if (!plan.any_absent()) return;
  Arena& arena = store_.arena();
  const auto [first, rows] = std::exchange(plan.fresh, {});
  u8* const unused = plan.flags(rows);
  for (int number = 0; number < kShards; ++number) {
    if (plan.absent[number] == 0) continue;
    Shard& shard = store_.shard(number);
    const std::lock_guard writing(shard.writing);
    shard.promised -= plan.promised[number];
    for (Group& group : plan.groups(number)) {
      if (group.spare == kNoRow) continue;
      if (group.spare - first < rows) {
        unused[group.spare - first] = 1;
      } else {
        shard.erased.give(arena, group.spare);
      }
    }
  }
  for (u32 end = rows; end > 0;) {  // from the end: the arena can take back its last rows whole
    u32 from = end;
    while (from > 0 && unused[from - 1] != 0) --from;
    if (end - from >= kReturnRows) {
      arena.give_back(first + from, end - from);
    } else if (end > from) {
      Shard& shard = store_.shard(int(from % kShards));
      const std::lock_guard writing(shard.writing);
      for (u32 row = from; row < end; ++row) shard.erased.give(arena, first + row);
    }
    end = from == end ? end - 1 : from;
  }
}

void RowAllocator::insert(Plan& plan, int number, Group& group) {
  Arena& arena = store_.arena();
  Shard& shard = store_.shard(number);
  if (plan.promised[number] != 0) {
    --plan.promised[number];
    --shard.promised;
  }
  store_.make_room_locked(shard, number, shard.index.size() + shard.promised + 1);
  if (group.spare != kNoRow) {
    group.row = std::exchange(group.spare, kNoRow);
  } else {
    group.row = shard.erased.size() != 0 ? shard.erased.take(arena) : arena.take(1);
  }
  store_.insert_key(shard, number, group.key, group.row);
  snapshots_.leave_out(number, group.row);
}

void RowAllocator::remove(int number, u64 key, u32 row, Erasure erasure) {
  snapshots_.keep(number, key, row);
  if (erasure == Erasure::tracked) tracker_.mark(number, key, Watched::every_change);
  Shard& shard = store_.shard(number);
  store_.erase_key(shard, number, key);
  shard.erased.give(store_.arena(), row);
}

}  // namespace hedgerow
