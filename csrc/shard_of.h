// How a slot hash splits: the top bits choose the shard, the rest the position inside its index.
#pragma once

#include "bits.h"

namespace hedgerow {

// Fixed, whatever the thread count: results must not depend on it.
inline constexpr int kShardBits = 6;
inline constexpr int kShards = 1 << kShardBits;

HR_INLINE int shard_of(u64 hash) { return int(hash >> (64 - kShardBits)); }
HR_INLINE u64 position_of(u64 hash) { return hash << kShardBits; }

}  // namespace hedgerow
