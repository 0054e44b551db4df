// A place in a walk over all rows of a table, which growth of the index does not disturb.
//
// As a number it is a slot hash: the shard above, the position below. Positions are multiples of
// kShards.
#pragma once

#include "shard_of.h"

namespace hedgerow {

// What one step of a walk did.
struct ScanStep {
  u64 rows;    // written
  u64 cursor;  // to go on from
  bool done;
  u64 needed;  // not 0: the room was too small for the next rows, which need this much
};

struct Cursor {
  explicit Cursor(u64 number) : shard(shard_of(number)), position(position_of(number)) {}

  // Moves behind what an index scan gave: to `next`, or to the next shard if this one is done.
  // False at the end of the last shard.
  bool move_to(u64 next, bool shard_done) {
    // Rounding up to the next multiple can only skip positions that no key has.
    position = (next + kShards - 1) & ~u64(kShards - 1);
    if (!shard_done && position >= next) return true;
    position = 0;
    return ++shard < kShards;
  }

  u64 number() const { return (u64(shard) << (64 - kShardBits)) | (position >> kShardBits); }

  int shard;
  u64 position;
};

}  // namespace hedgerow
