// Room for new rows: given before anything changes, used as keys are inserted, returned at the end.
#include <mutex>
#include <utility>

#include "each_shard.h"
#include "table.h"

namespace hedgerow {
namespace {

constexpr u32 kReturnRows = 256;  // shorter runs of unused rows are not worth a range in the arena

}  // namespace

// Room for `rows` keys in all. The caller holds the shard's `writing`; readers stop for the swap
// alone.
void Table::make_room(int number, u64 rows) {
  Shard& shard = *shards_[number];
  if (shard.index.has_room(rows)) return;
  Index larger = shard.index.grown(rows);
  const std::lock_guard hold(shard.lock);
  shard.index = std::move(larger);
  views_[number] = shard.index.view();
}

// Gives a row to every key that was not found and makes room for it in the index, so that nothing
// can fail once rows change. Rows of erased keys come first; the others are one run of the arena in
// the order of the batch: ids that came together lie together.
void Table::reserve(Plan& plan, u64 n) {
  plan.start_ranks();
  for_each_shard(n, [&](int number) {
    if (plan.absent[number] == 0) return;
    Shard& shard = *shards_[number];
    const std::lock_guard writing(shard.writing);
    for (Group& group : plan.groups(number)) {
      if (group.row != kNoRow) continue;
      if (shard.erased.size() != 0) {
        group.spare = shard.erased.take(arena_);
      } else {
        plan.mark(group);
      }
    }
  });
  const u32 rows = plan.rank();
  const u32 first = rows == 0 ? 0 : arena_.take(rows);
  plan.fresh = {first, rows};
  try {
    for_each_shard(n, [&](int number) {
      if (plan.absent[number] == 0) return;
      Shard& shard = *shards_[number];
      const std::lock_guard writing(shard.writing);
      make_room(number, shard.index.size() + shard.promised + plan.absent[number]);
      shard.promised += plan.promised[number] = plan.absent[number];
    });
  } catch (...) {
    if (rows != 0) arena_.give_back(first, rows);
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

// Ends a call: rows it was given and did not use are for others. Runs of rows that nobody ever
// touched go back to the arena: a list through them would make their pages resident.
void Table::release(Plan& plan) {
  if (!plan.any_absent()) return;
  const auto [first, rows] = std::exchange(plan.fresh, {});
  u8* const unused = plan.flags(rows);
  for (int number = 0; number < kShards; ++number) {
    if (plan.absent[number] == 0) continue;
    Shard& shard = *shards_[number];
    const std::lock_guard writing(shard.writing);
    shard.promised -= plan.promised[number];
    for (Group& group : plan.groups(number)) {
      if (group.spare == kNoRow) continue;
      if (group.spare - first < rows) {
        unused[group.spare - first] = 1;
      } else {
        shard.erased.give(arena_, group.spare);
      }
    }
  }
  for (u32 end = rows; end > 0;) {  // from the end: the arena can take back its last rows whole
    u32 from = end;
    while (from > 0 && unused[from - 1] != 0) --from;
    if (end - from >= kReturnRows) {
      arena_.give_back(first + from, end - from);
    } else if (end > from) {
      Shard& shard = *shards_[from % kShards];
      const std::lock_guard writing(shard.writing);
      for (u32 row = from; row < end; ++row) shard.erased.give(arena_, first + row);
    }
    end = from == end ? end - 1 : from;
  }
}

// A row for a key that has none. One was reserved, unless another call erased the key since
// `locate`: then it has to be found now.
void Table::insert(Plan& plan, int number, Group& group) {
  Shard& shard = *shards_[number];
  if (plan.promised[number] != 0) {
    --plan.promised[number];
    --shard.promised;
  }
  const u64 rows = shard.index.size() + shard.promised + 1;
  if (!shard.index.has_room(rows)) {
    shard.index = shard.index.grown(rows);
    views_[number] = shard.index.view();
  }
  if (group.spare != kNoRow) {
    group.row = std::exchange(group.spare, kNoRow);
  } else {
    group.row = shard.erased.size() != 0 ? shard.erased.take(arena_) : arena_.take(1);
  }
  shard.index.insert(group.key, shard.index.position(group.key), group.row);
  near_.insert(number, group.key, group.row);
  if (snapshot_.watches(number)) snapshot_.settle(group.row);
  ++shard.version;
}

void Table::remove(int number, u64 key, u32 row, bool told) {
  Shard& shard = *shards_[number];
  if (snapshot_.watches(number)) snapshot_.keep(number, key, stamp_of(row), row, arena_.row(row));
  for (const auto& [_, touched] : touched_)
    if (told && touched->all_changes()) touched->mark(number, key);
  shard.index.erase(key, shard.index.position(key));
  near_.erase(number, key);
  shard.erased.give(arena_, row);
  ++shard.version;
}

}  // namespace hedgerow
