// Finds the rows of keys in two steps, one compilation per instruction set: homes are fetched for a
// group of keys, and searched when they have arrived.
#pragma once

#include "bucket.h"
#include "isa.h"

namespace hedgerow {

struct ProbeArgs {
  const IndexView* views;  // of all shards
  const i64* keys;
  u64 n;
  const Bucket** homes;  // first buckets of the keys: `fetch` writes, `find` reads
  u32* rows;             // `find` writes: row numbers, or kNoRow
};

struct Probe {
  void (*fetch)(const ProbeArgs&);
  void (*find)(const ProbeArgs&);
};
Probe probe_for(Isa isa);

}  // namespace hedgerow
