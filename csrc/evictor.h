// Evicts rows that are too old, or beyond a budget, in slices while other calls go on.
//
// Evictions look at up to `room` rows from `cursor` on (0 to begin). Ids and times of the rows that
// left are written out. As with a scan, a row that lives from the first step to the last is looked
// at exactly once. One eviction of a table at a time.
#pragma once

#include <atomic>
#include <vector>

#include "cursor.h"
#include "evict.h"
#include "row_allocator.h"
#include "row_store.h"
#include "snapshotter.h"

namespace hedgerow {

class Evictor {
 public:
  Evictor(RowStore& store, RowAllocator& allocator, Snapshotter& snapshots)
      : store_(store), allocator_(allocator), snapshots_(snapshots) {}

  // Evicts rows whose age at `reference` has reached that of their slot in `ages` [kAgeSlots], in a
  // table without marks. Shards that can have none are not looked at.
  ScanStep evict_older(i64 reference, const i64* ages, u64 cursor, u64 room, i64* ids, i64* times);

  // The last row that must leave for `budget` rows to stay. No row is looked at if there are no
  // more. `top` is the largest mark that a row may have. Ordering by use needs marks of uses.
  Cut find_cut(LeaveBy order, u64 budget, u64 top);

  // Evicts rows that rank no higher than the cut when they are looked at, at most `cut.excess` of
  // them. By use: rows used since find_cut stay.
  ScanStep evict_ranked(LeaveBy order, const Cut& cut, u64 top, u64 cursor, u64 room, i64* ids,
                        i64* times);

  // How often evictions looked at a row, over the life of the table.
  u64 looked_at() const { return looked_at_.load(); }

 private:
  template <class Body>
  bool visit_slice(Cursor& cursor, u64 limit, const Body& body);
  template <class Rule>
  ScanStep evict_slices(u64 cursor, u64 room, i64* ids, i64* times, Rule& rule);
  template <class Body>
  void each_rank(u64 top, const Body& body);
  void check_order(LeaveBy order) const;
  void use_ages(const i64* ages);

  RowStore& store_;
  RowAllocator& allocator_;
  Snapshotter& snapshots_;
  std::atomic<u64> looked_at_{0};
  std::vector<i64> ages_;  // that the shards' oldest times were found with
};

}  // namespace hedgerow
