// Finds the rows of keys in three steps, one compilation per instruction set: homes are fetched for
// a group of keys and searched when they have arrived; the few keys that live in a bucket behind
// their home are found last, when that has arrived, too.
#pragma once

#include "bucket.h"
#include "isa.h"
#include "slot_hash.h"

namespace hedgerow {

struct ProbeArgs {
  const SlotHash* hash;
  const IndexView* views;  // of all shards
  const i64* keys;
  u64 n;                 // at most 64
  const Bucket** homes;  // first buckets of the keys: `fetch` writes, `find` reads
  u32* rows;             // `find` and `find_beyond` write: row numbers, or kNoRow
};

struct Probe {
  void (*fetch)(const ProbeArgs&);
  u64 (*find)(const ProbeArgs&);  // bit i: key i is still to be found by `find_beyond`
};
Probe probe_for(Isa isa);
void find_beyond(const ProbeArgs& args, u64 keys);

// Keys of a group: of most searches, and of those that wait for page tables most of the time.
inline constexpr u64 kProbeGroup = 16, kLargeProbeGroup = 64;

// All three steps over any number of keys, group by group: rows[i] = the row of keys[i], or kNoRow.
template <u64 kGroup>
class ProbeAhead {
 public:
  ProbeAhead(const SlotHash& hash, const IndexView* views, const i64* keys, u64 n, u32* rows);

  // After the first call the rows of the first group are known, after the next those of the second;
  // after the last group nothing happens any more.
  void step();

 private:
  static constexpr u64 kHomes = 4 * kGroup;  // keys whose homes are being fetched or searched

  ProbeArgs group(u64 start);

  const Probe probe_;
  const SlotHash* hash_;
  const IndexView* views_;
  const i64* keys_;
  u64 n_;
  u32* rows_;
  u64 at_ = 0;                   // the group whose rows the next step makes known
  u64 beyond_ = 0;               // its keys that are still to be found
  const Bucket* homes_[kHomes];  // used in turn
};

extern template class ProbeAhead<kProbeGroup>;
extern template class ProbeAhead<kLargeProbeGroup>;

}  // namespace hedgerow
