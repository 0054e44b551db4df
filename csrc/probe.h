// Finds the rows of keys in three steps, one compilation per instruction set: homes are fetched for
// a group of keys and searched when they have arrived; the few keys that live in a bucket behind
// their home are found last, when that has arrived, too.
#pragma once

#include "bucket.h"
#include "isa.h"

namespace hedgerow {

struct ProbeArgs {
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

}  // namespace hedgerow
