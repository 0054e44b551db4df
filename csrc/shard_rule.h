// Which shard owns an id: the router's rule, the id as unsigned, modulo the owners.
#pragma once

#include <bit>

#include "bits.h"

namespace hedgerow {

// The first `skipped` shards own nothing.
struct AnyShards {
  u64 owners, skipped;
  HR_INLINE u32 operator()(u64 id) const { return u32(id % owners + skipped); }
};
struct PowerOfTwoShards {
  u64 mask, skipped;
  HR_INLINE u32 operator()(u64 id) const { return u32((id & mask) + skipped); }
};

// body(rule), where the rule is a type of its own for powers of two: a division costs more than the
// rest of what is done with an id.
template <class Body>
auto with_shard_rule(u64 owners, u64 skipped, Body&& body) {
  return std::has_single_bit(owners) ? body(PowerOfTwoShards{owners - 1, skipped})
                                     : body(AnyShards{owners, skipped});
}

}  // namespace hedgerow
