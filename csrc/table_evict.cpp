// Eviction: rows too old, or beyond a budget, leave in slices while other calls go on.
#include <algorithm>
#include <bit>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include "cursor.h"
#include "evict.h"
#include "pool.h"
#include "table.h"

namespace hedgerow {
namespace {

constexpr u64 kSliceRows = 1024;  // rows looked at under one hold of a shard's locks
constexpr int kBinBits = 12;      // of one pass of the search for a cut

int bit_width(u128 value) {
  const u64 high = u64(value >> 64);
  return high != 0 ? 64 + std::bit_width(high) : std::bit_width(u64(value));
}

u64 score_of(u128 rank) { return u64(rank >> 64); }
i64 key_of(u128 rank) { return i64(u64(rank) ^ (u64(1) << 63)); }

// Ranks lowest..highest in equal bins.
struct Bins {
  Bins(u128 lowest, u128 highest)
      : lowest(lowest),
        highest(highest),
        shift(std::max(0, bit_width(highest - lowest) - kBinBits)),
        count(u64(1) << kBinBits) {}

  void add(u128 rank) {
    if (rank < lowest) {
      ++below;
    } else if (rank <= highest) {
      ++count[u64((rank - lowest) >> shift)];
    }
  }
  u128 first(u64 bin) const { return lowest + (u128(bin) << shift); }
  u128 last(u64 bin) const {
    const u128 more = (u128(1) << shift) - 1;
    return highest - first(bin) < more ? highest : first(bin) + more;
  }

  u128 lowest, highest;
  int shift;
  u64 below = 0;
  std::vector<u64> count;
};

}  // namespace

// Shows the next rows of a walk to `body`, which gets them with their shard. Nobody writes to the
// shard meanwhile; lookups go on. The caller shares `clearing_`. Returns false at the table's end.
template <class Body>
bool Table::walk_slice(Cursor& cursor, u64 limit, const Body& body) {
  static thread_local std::vector<KeyRow> found;
  found.clear();
  Shard& shard = *shards_[cursor.shard];
  bool shard_done = false;
  const TrimAfter trim(arena_);
  const std::lock_guard writing(shard.writing);
  const u64 next = shard.index.scan(cursor.position, limit, found, shard_done);
  for (const KeyRow& entry : found) {
    fetch_line(arena_.time(entry.row));
    if (arena_.counts_uses()) fetch_line(arena_.uses(entry.row));
  }
  if (!body(cursor.shard, found)) return true;
  return cursor.move_to(next, shard_done);
}

template <class Doomed>
ScanStep Table::evict_slices(u64 cursor, u64 room, i64* ids, i64* times, const Doomed& doomed) {
  before_write();
  const CallScope scope;
  arena_.check();
  const std::shared_lock uncleared(clearing_);
  ScanStep step{0, cursor, false, 0};
  Cursor at(cursor);
  u64 seen = 0;
  bool fits = true;
  while (fits && seen < room && !step.done) {
    const u64 left = room - seen;
    step.done = !walk_slice(at, std::min(kSliceRows, left), [&](int number, auto& found) {
      fits = found.size() <= left;
      if (!fits) {  // one home bucket with more keys than there is room
        if (seen == 0) step.needed = found.size();
        return false;
      }
      seen += found.size();
      std::erase_if(found, [&](const KeyRow& entry) { return !doomed(entry); });
      if (found.empty()) return true;
      const std::lock_guard alone(shards_[number]->lock);
      for (const KeyRow& entry : found) {
        ids[step.rows] = i64(entry.key);
        times[step.rows++] = *arena_.time(entry.row);
        remove(number, entry.key, entry.row);
      }
      return true;
    });
  }
  if (!step.done) step.cursor = at.number();
  return step;
}

ScanStep Table::evict_older(i64 reference, const i64* ages, u64 cursor, u64 room, i64* ids,
                            i64* times) {
  return evict_slices(cursor, room, ids, times, [&](const KeyRow& entry) {
    return reference - *arena_.time(entry.row) >= ages[age_slot(entry.key)];
  });
}

ScanStep Table::evict_ranked(LeaveBy order, const Cut& cut, u64 cursor, u64 room, i64* ids,
                             i64* times) {
  check_order(order);
  const u128 last = leave_rank(cut.score, u64(cut.key));
  u64 left = cut.excess;
  return evict_slices(cursor, room, ids, times, [&](const KeyRow& entry) {
    const bool used = order == LeaveBy::use && (*arena_.uses(entry.row) & kUsedSince) != 0;
    if (left != 0 && !used && rank_of(order, entry) <= last) {
      --left;
      return true;
    }
    if (order == LeaveBy::use) {
      u16& uses = *arena_.uses(entry.row);
      uses = u16(counted_uses(uses) / 2 | (uses & kUsedSince));
    }
    return false;
  });
}

void Table::check_order(LeaveBy order) const {
  if (order == LeaveBy::use && !arena_.counts_uses())
    throw std::invalid_argument("this table does not count uses: make it with counts_uses");
}

u128 Table::rank_of(LeaveBy order, const KeyRow& entry) const {
  const u16 uses = order == LeaveBy::use ? *arena_.uses(entry.row) : 0;
  return leave_rank(leave_score(order, *arena_.time(entry.row), uses), entry.key);
}

template <class Body>
void Table::each_rank(LeaveBy order, const Body& body) {
  const std::shared_lock uncleared(clearing_);
  Cursor cursor(0);
  while (walk_slice(cursor, kSliceRows, [&](int, const auto& found) {
    for (const KeyRow& entry : found) body(entry, rank_of(order, entry));
    return true;
  })) {
  }
}

// Counts rows in ever finer bins of rank until a bin ends exactly at the last row that must leave:
// a few walks over the time stamps, and no memory that grows with the table. Rows that change
// meanwhile move the cut a little; evict_ranked never takes more than the excess.
Cut Table::find_cut(LeaveBy order, u64 budget) {
  check_order(order);
  const CallScope scope;
  arena_.check();
  u64 rows = 0;
  u128 lowest = ~u128(0), highest = 0;
  each_rank(order, [&](const KeyRow& entry, u128 rank) {
    if (order == LeaveBy::use) *arena_.uses(entry.row) &= kMostUses;
    ++rows;
    lowest = std::min(lowest, rank);
    highest = std::max(highest, rank);
  });
  if (rows <= budget) return {0, 0, 0};
  const u64 excess = rows - budget;
  while (lowest < highest) {
    Bins bins(lowest, highest);
    each_rank(order, [&](const KeyRow&, u128 rank) { bins.add(rank); });
    u64 bin = 0, leaving = bins.below + bins.count[0];
    while (leaving < excess && bins.last(bin) < highest) leaving += bins.count[++bin];
    highest = bins.last(bin);
    if (leaving <= excess) break;
    lowest = bins.first(bin);
  }
  return {excess, score_of(highest), key_of(highest)};
}

}  // namespace hedgerow
