// The change feed of a table: which keys changed, collected for any number of consumers.
//
// Consumers come and go with the table's lock held alone. A key is marked by the call that changes
// it, which holds the `writing` of its shard.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "row_store.h"
#include "touched.h"

namespace hedgerow {

struct TouchedUse {
  u64 keys;       // waiting to be taken
  u64 overflows;  // over the consumer's life
};

class ChangeTracker {
 public:
  explicit ChangeTracker(RowStore& store) : store_(store) {}

  // ---- for consumers

  u64 open(u64 capacity, Watched watched, OnOverflow on_overflow);
  void close(u64 consumer);
  // Goes on from a shard (0 to begin) and gives all keys of a shard or none.
  TouchedStep take(u64 consumer, int shard, u64 room, i64* ids);
  void touch(u64 consumer, const i64* ids, u64 n);  // puts keys back
  void touch_all(u64 consumer);
  TouchedUse use(u64 consumer) const;

  // ---- for calls that change rows. The caller shares the table's lock or holds it alone.

  bool has_consumers() const { return !consumers_.empty(); }
  u64 bytes(int shard) const;  // the caller holds the shard's `writing`, as for `mark`
  // A key changed; consumers that see such changes collect it.
  void mark(int shard, u64 key, Watched change) {
    for (const auto& [_, touched] : consumers_)
      if (touched->sees(change)) touched->mark(shard, key);
  }
  // All rows changed at once: any key may have.
  void mark_all();
  // The slot key changed: collected keys move to the shards that they belong to now.
  void place_by(const SlotHash& hash);

 private:
  Touched& consumer(u64 number) const;

  RowStore& store_;
  std::vector<std::pair<u64, std::unique_ptr<Touched>>> consumers_;
  u64 opened_ = 0;
};

}  // namespace hedgerow
