// Rows of ids that stand close together, by the id itself: an array beside the index.
//
// Ids of a vocabulary or of a counter fill whole ranges of numbers. A range of 65,536 that is half
// full or more has an array of row numbers: four bytes, side by side with those of the next id,
// where the index takes a hash and a line of its own. The index still knows every key: an entry
// here says where the row is, or nothing. What it says is true for whoever holds the lock of the
// key's shard, shared or not.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "bits.h"
#include "memory.h"

namespace hedgerow {

class DenseIds {
 public:
  DenseIds();

  // Whether some of the keys are in a range that has an array, as the first of them show.
  bool serves(const i64* keys, u64 n) const;

  // Rows of keys, kNoRow for those of which nothing is said. The places of the latter go to `left`
  // [n]; returns how many. The caller holds the locks of the keys' shards.
  u64 find(const i64* keys, u64 n, u32* rows, u32* left) const;

  // Says where the row of a key is that the index has, if its range has an array. The caller holds
  // the lock of its shard, shared at least.
  void learn(u64 key, u32 row) const;

  // Told of every key that comes or goes. The caller has the lock of its shard alone.
  void insert(int shard, u64 key, u32 row);
  void erase(int shard, u64 key);

  u64 bytes() const;

  // The caller has every shard locked, of both for `swap`.
  void clear();
  void swap(DenseIds& other);

 private:
  using Entry = std::atomic<u32>;  // row number + 1; 0: nothing
  struct alignas(32) Range {
    std::atomic<Entry*> rows;    // null: the range has no array
    std::atomic<Entry*> memory;  // of its array, if it ever had one: readers may still look there
    std::atomic<u32> sampled;    // keys in some of the shards
  };

  void make_array(u64 range);
  void drop_array(u64 range);

  Block directory_;
  Range* ranges_;  // in `directory_`: untouched pages cost nothing
  std::atomic<u32> arrays_{0};
  std::map<u64, Block> blocks_;  // by range
  Charge charge_;
  mutable std::mutex mutex_;  // guards the making and dropping of arrays
};

}  // namespace hedgerow
