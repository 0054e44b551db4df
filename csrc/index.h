// The index of one shard: 64-bit keys to row numbers, open addressing, one cache line per bucket.
//
// A key lives in its home bucket or, if that is full, in the next one with room. Every bucket
// counts the keys that passed through it, so a search ends at the first bucket nobody passed, and
// an erase undoes its own marks: there are no tombstones, and churn does not slow the index down.
// Buckets are in order of position (the hash without the shard's bits), for any bucket count. That
// makes growth a merge in order and gives scans a cursor that growth does not disturb.
#pragma once

#include <vector>

#include "bits.h"
#include "bucket.h"
#include "memory.h"
#include "shard_of.h"
#include "slot_hash.h"

namespace hedgerow {

struct KeyRow {
  u64 key;
  u32 row;
};

class Index {
 public:
  static constexpr u64 kMaxPerBucket = 4;  // grow above 4 of 5 slots on average

  // `phase` in [0, 1) shifts the sizes at which this index grows, so that shards, which fill
  // evenly, do not all grow in the same call. Positions are those of `hash`.
  Index(double phase, const SlotHash& hash) : hash_(hash), phase_(phase) {}
  Index(Index&&) = default;
  Index& operator=(Index&&) = default;

  u64 size() const { return size_; }
  u64 bucket_count() const { return count_; }
  u64 bytes() const { return block_.bytes(); }
  u64 longest_search() const;  // buckets that the worst search for an absent key visits

  // Whether `rows` keys in all fit without growth.
  bool has_room(u64 rows) const { return rows <= count_ * kMaxPerBucket; }

  // The same keys with room for `rows` in all. Throws OutOfMemory. This index is only read.
  Index grown(u64 rows) const;

  // Valid until the index grows or is cleared.
  IndexView view() const { return {buckets_, count_ == 0 ? 1 : count_}; }

  HR_INLINE u32 find(u64 key, u64 position) const { return find_in(view(), key, position); }

  u64 position(u64 key) const { return position_of(hash_(key)); }

  // The key must be absent and room reserved.
  void insert(u64 key, u64 position, u32 row);

  // Removes the key and returns its row, or kNoRow.
  u32 erase(u64 key, u64 position);

  // Appends the keys at positions >= `from`, home bucket by home bucket, while `out` holds at most
  // `limit` entries, and returns the position to go on from. `done` is set when none are left.
  // A single home bucket is never split: `out` may exceed the limit by its keys if it was empty.
  u64 scan(u64 from, u64 limit, std::vector<KeyRow>& out, bool& done) const;

  void clear();
  void place_by(const SlotHash& hash) { hash_ = hash; }  // while it has no keys

 private:
  HR_INLINE u64 home(u64 position) const { return u64((u128(position) * count_) >> 64); }
  HR_INLINE u64 next(u64 at) const { return at + 1 == count_ ? 0 : at + 1; }
  u64 first_position_of(u64 bucket) const;  // smallest position whose home is `bucket`
  u64 buckets_for(u64 rows) const;
  void gather(u64 bucket, u64 from, std::vector<KeyRow>& out) const;

  Charge charge_;
  Block block_;
  static const Bucket kEmpty;  // what an index without buckets shows to searches
  Bucket* buckets_ = const_cast<Bucket*>(&kEmpty);  // never written while count_ is 0
  u64 count_ = 0;                                   // buckets
  u64 size_ = 0;                                    // keys
  SlotHash hash_;
  double phase_;
};

}  // namespace hedgerow
