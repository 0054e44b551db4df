// Evictions by age, and the search for the last row that must leave for a budget.
#include "evictor.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include "pool.h"

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

u128 rank_of(const RowStore& store, const KeyRow& entry, u64 top) {
  return leave_rank(leave_score(store.marks(), store.stamp_of(entry.row), top), entry.key);
}

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
// shard meanwhile; lookups go on. The caller shares the table's lock. Returns false at the table's
// end.
template <class Body>
bool Evictor::visit_slice(Cursor& cursor, u64 limit, const Body& body) {
  static thread_local std::vector<KeyRow> found;
  found.clear();
  Shard& shard = store_.shard(cursor.shard);
  bool shard_done = false;
  const TrimAfter trim(store_.arena());
  const std::lock_guard writing(shard.writing);
  const u64 next = shard.index.scan(cursor.position, limit, found, shard_done);
  for (const KeyRow& entry : found) fetch_line(store_.arena().time(entry.row));
  const u64 shown = found.size();
  if (!body(cursor.shard, found, shard_done)) return true;
  looked_at_.fetch_add(shown, std::memory_order_relaxed);
  return cursor.move_to(next, shard_done);
}

// `rule.skips(shard)`, at the start of a shard: none of its rows need be looked at.
// `rule.takes(shard, entry)`: this one leaves. `rule.ends(shard)`: all of it was looked at.
template <class Rule>
ScanStep Evictor::evict_slices(u64 cursor, u64 room, i64* ids, i64* times, Rule& rule) {
  snapshots_.before_write();
  const CallScope scope;
  store_.arena().check();
  const std::shared_lock shared(store_.table_lock());
  ScanStep step{0, cursor, false, 0};
  Cursor at(cursor);
  u64 seen = 0;
  bool fits = true;
  while (fits && seen < room && !step.done) {
    if (at.position == 0) {
      const std::lock_guard writing(store_.shard(at.shard).writing);
      if (rule.skips(store_.shard(at.shard))) {
        step.done = !at.move_to(0, true);
        continue;
      }
    }
    const u64 left = room - seen;
    step.done =
        !visit_slice(at, std::min(kSliceRows, left), [&](int number, auto& found, bool last) {
          fits = found.size() <= left;
          if (!fits) {  // one home bucket with more keys than there is room
            if (seen == 0) step.needed = found.size();
            return false;
          }
          seen += found.size();
          Shard& shard = store_.shard(number);
          std::erase_if(found, [&](const KeyRow& entry) { return !rule.takes(shard, entry); });
          if (last) rule.ends(shard);
          if (found.empty()) return true;
          const std::lock_guard alone(shard.lock);
          store_.count_change();
          for (const KeyRow& entry : found) {
            ids[step.rows] = i64(entry.key);
            times[step.rows++] = store_.stamp_of(entry.row);
            allocator_.remove(number, entry.key, entry.row, Erasure::tracked);
          }
          return true;
        });
  }
  if (!step.done) step.cursor = at.number();
  return step;
}

// The oldest times of the shards hold for the ages they were found with.
void Evictor::use_ages(const i64* ages) {
  if (std::equal(ages_.begin(), ages_.end(), ages, ages + kAgeSlots)) return;
  const CallScope scope;
  const std::shared_lock shared(store_.table_lock());  // an exchange of rows writes there, too
  ages_.assign(ages, ages + kAgeSlots);
  for (auto& shard : store_.shards()) {
    const std::lock_guard writing(shard->writing);
    shard->oldest.forget_walks();
  }
}

// Where ids of some slots may stay longer than others, their rows count as so much younger: then
// one time and the shortest age say of a shard when the first of its rows may expire.
ScanStep Evictor::evict_older(i64 reference, const i64* ages, u64 cursor, u64 room, i64* ids,
                              i64* times) {
  if (store_.marks() != Marks::none)
    throw std::invalid_argument("this table has marks in its stamps: its rows do not leave by age");
  if (cursor == 0) use_ages(ages);
  struct Rule {
    const RowStore& store;
    const i64 reference;
    const i64* const ages;
    const i64 shortest;

    bool skips(Shard& shard) const {
      if (shard.oldest.least() == OldestTime::kNoRow) return true;
      if (reference - shard.oldest.least() < shortest) return true;
      shard.oldest.begin_walk();
      return false;
    }
    bool takes(Shard& shard, const KeyRow& entry) const {
      const i64 time = *store.arena().time(entry.row), age = ages[age_slot(entry.key)];
      if (reference - time >= age) return true;
      shard.oldest.stays(time + (age - shortest));
      return false;
    }
    void ends(Shard& shard) const { shard.oldest.end_walk(); }
  };
  Rule rule{store_, reference, ages, *std::min_element(ages, ages + kAgeSlots)};
  return evict_slices(cursor, room, ids, times, rule);
}

ScanStep Evictor::evict_ranked(LeaveBy order, const Cut& cut, u64 top, u64 cursor, u64 room,
                               i64* ids, i64* times) {
  check_order(order);
  struct Rule {
    const RowStore& store;
    const u128 last;
    const u64 top;
    u64 left;

    bool skips(Shard&) const { return left == 0; }
    bool takes(Shard&, const KeyRow& entry) {
      if (left == 0) return false;
      if (store.marks() == Marks::uses && (*store.arena().time(entry.row) & kUsedSince) != 0)
        return false;
      if (rank_of(store, entry, top) > last) return false;
      --left;
      return true;
    }
    void ends(Shard&) const {}
  };
  Rule rule{store_, leave_rank(cut.score, u64(cut.key)), top, cut.excess};
  return evict_slices(cursor, room, ids, times, rule);
}

void Evictor::check_order(LeaveBy order) const {
  if (order == LeaveBy::use && store_.marks() != Marks::uses)
    throw std::invalid_argument("this table does not count uses: make it with marks of uses");
}

template <class Body>
void Evictor::each_rank(u64 top, const Body& body) {
  const std::shared_lock shared(store_.table_lock());
  Cursor cursor(0);
  while (visit_slice(cursor, kSliceRows, [&](int, const auto& found, bool) {
    for (const KeyRow& entry : found) body(entry, rank_of(store_, entry, top));
    return true;
  })) {
  }
}

// Counts rows in ever finer bins of rank until a bin ends exactly at the last row that must leave:
// a few walks over the stamps, and no memory that grows with the table. Rows that change meanwhile
// move the cut a little; evict_ranked never takes more than the excess.
Cut Evictor::find_cut(LeaveBy order, u64 budget, u64 top) {
  check_order(order);
  const CallScope scope;
  store_.arena().check();
  if (store_.size() <= budget) return {0, 0, 0};
  u64 rows = 0;
  u128 lowest = ~u128(0), highest = 0;
  each_rank(top, [&](const KeyRow& entry, u128 rank) {
    if (store_.marks() == Marks::uses) *store_.arena().time(entry.row) &= ~kUsedSince;
    ++rows;
    lowest = std::min(lowest, rank);
    highest = std::max(highest, rank);
  });
  if (rows <= budget) return {0, 0, 0};
  const u64 excess = rows - budget;
  while (lowest < highest) {
    Bins bins(lowest, highest);
    each_rank(top, [&](const KeyRow&, u128 rank) { bins.add(rank); });
    u64 bin = 0, leaving = bins.below + bins.count[0];
    while (leaving < excess && bins.last(bin) < highest) leaving += bins.count[++bin];
    highest = bins.last(bin);
    if (leaving <= excess) break;
    lowest = bins.first(bin);
  }
  return {excess, score_of(highest), key_of(highest)};
}

}  // namespace hedgerow
