// Gives rows to new keys and takes them back: room is reserved before a call changes anything, used
// as its keys are inserted, and returned at its end.
#pragma once

#include "change_tracker.h"
#include "plan.h"
#include "row_store.h"
#include "snapshotter.h"

namespace hedgerow {

// Whether consumers of touched keys hear of an erasure. They do not where the row moves to another
// store of the same table.
enum class Erasure { tracked, untracked };

class RowAllocator {
 public:
  RowAllocator(RowStore& store, ChangeTracker& tracker, Snapshotter& snapshots)
      : store_(store), tracker_(tracker), snapshots_(snapshots) {}

  // Gives a row to every key of the plan that was not found and makes room for it in the index, so
  // that nothing can fail once rows change. `n`: the ids of the call. Throws OutOfMemory; nothing
  // is reserved then but what `release` returns.
  void reserve(Plan& plan, u64 n);
  // Ends a call: rows that it was given and did not use are for others.
  void release(Plan& plan);

  // The rest is called with both locks of the shard held.

  // A row for a key that has none. One was reserved, unless another call erased the key after this
  // call searched for it. Then a row has to be found now.
  void insert(Plan& plan, int shard, Group& group);
  void remove(int shard, u64 key, u32 row, Erasure erasure);

 private:
  RowStore& store_;
  ChangeTracker& tracker_;
  Snapshotter& snapshots_;
};

}  // namespace hedgerow
