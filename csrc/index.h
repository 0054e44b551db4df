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
#include "memory.h"

namespace hedgerow {

inline constexpr u32 kNoRow = 0xffffffffu;

struct KeyRow {
  u64 key;
  u32 row;
};

class Index {
 public:
  static constexpr int kSlots = 5;  // 5 keys + 5 row numbers + one word of counts fill a line
  static constexpr u64 kMaxPerBucket = 4;  // grow above 4 of 5 slots on average

  // `phase` in [0, 1) shifts the sizes at which this index grows, so that shards, which fill
  // evenly, do not all grow in the same call.
  explicit Index(double phase) : phase_(phase) {}

  u64 size() const { return size_; }
  u64 bucket_count() const { return count_; }
  u64 bytes() const { return block_.bytes(); }
  u64 longest_search() const;  // buckets that the worst search for an absent key visits

  // Room for `rows` keys in all without further growth. Throws OutOfMemory; nothing is changed
  // then.
  void reserve(u64 rows);

  HR_INLINE void prefetch(u64 position) const {
    if (count_ != 0) __builtin_prefetch(&buckets_[home(position)]);
  }

  HR_INLINE u32 find(u64 key, u64 position) const {
    if (count_ == 0) return kNoRow;
    const u64 start = home(position);
    u64 at = start;
    do {
      const Bucket& bucket = buckets_[at];
      const u32 hit = match(bucket, key);
      if (hit != 0) return bucket.row[__builtin_ctz(hit)];
      if (passed(bucket) == 0) return kNoRow;
      at = next(at);
    } while (at != start);  // a small index can be passed all the way round
    return kNoRow;
  }

  // The key must be absent and room reserved.
  void insert(u64 key, u64 position, u32 row);

  // Removes the key and returns its row, or kNoRow.
  u32 erase(u64 key, u64 position);

  // Appends the keys at positions >= `from`, home bucket by home bucket, while `out` holds at most
  // `limit` entries, and returns the position to go on from. `done` is set when none are left.
  // A single home bucket is never split: `out` may exceed the limit by its keys if it was empty.
  u64 scan(u64 from, u64 limit, std::vector<KeyRow>& out, bool& done) const;

  void clear();

 private:
  struct alignas(64) Bucket {
    u64 key[kSlots];
    u32 row[kSlots];
    u32 counts;  // low 8 bits: slots in use; the rest: keys that passed through, saturating
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr u32 kPass = u32(1) << 8;
  static constexpr u32 kPassFull = 0xffffff00u;

  static HR_INLINE u32 used(const Bucket& bucket) { return bucket.counts & 0xffu; }
  static HR_INLINE u32 passed(const Bucket& bucket) { return bucket.counts & kPassFull; }

  static HR_INLINE u32 match(const Bucket& bucket, u64 key) {
    u32 equal = 0;
    for (u32 i = 0; i < kSlots; ++i) equal |= u32(bucket.key[i] == key) << i;
    return equal & ((u32(1) << used(bucket)) - 1);
  }

  HR_INLINE u64 home(u64 position) const { return u64((u128(position) * count_) >> 64); }
  HR_INLINE u64 next(u64 at) const { return at + 1 == count_ ? 0 : at + 1; }
  u64 first_position_of(u64 bucket) const;  // smallest position whose home is `bucket`
  u64 buckets_for(u64 rows) const;
  void gather(u64 bucket, u64 from, std::vector<KeyRow>& out) const;

  Charge charge_;
  Block block_;
  Bucket* buckets_ = nullptr;
  u64 count_ = 0;  // buckets
  u64 size_ = 0;   // keys
  double phase_;
};

}  // namespace hedgerow
