// Work on every shard of a call, shared with the pool where there is enough of it.
#pragma once

#include "pool.h"
#include "shard_of.h"

namespace hedgerow {

inline constexpr u64 kShareIds = 4096;  // smaller calls are not worth waking other threads for

void for_each_shard(u64 ids, auto&& body) {
  if (ids < kShareIds) {
    for (int shard = 0; shard < kShards; ++shard) body(shard);
  } else {
    parallel_for(kShards, [&](i64 shard) { body(int(shard)); });
  }
}

}  // namespace hedgerow
