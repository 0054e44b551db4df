// Ids without their duplicates, ordered by shard for an exchange between all ranks.
#pragma once

#include <span>

#include "bits.h"

namespace hedgerow {

using i32 = std::int32_t;

// Each is a call of its own: not for use inside another.

// How the keys of `reorder` compare: as numbers, so that -0 is 0 and NaN is nothing's equal.
enum class Key : int { int64 = 0, float32 = 1, float64 = 2 };
Key key_kind(int number);  // throws std::invalid_argument

struct ReorderArgs {
  const u8* keys;  // of row 0
  Key kind;
  u64 key_stride;     // bytes from one to the next
  const u8* rows;     // [n, row_bytes]
  u64 row_bytes, n;   // n < 2^31
  const i32* shards;  // [n], each within [0, shard_count)
  u64 shard_count;
};

// The first row of every key, by the shard of that row; those of one shard from the last seen to
// the first. `out` has room for n rows, `sizes` holds the rows of each shard. How many there are.
u64 reorder(const ReorderArgs& args, u8* out, i32* sizes);

struct SlotIds {
  const u64* ids;
  u64 n;    // < 2^31
  u64 dim;  // values of a vector
};

struct FusedReorderArgs {
  std::span<const SlotIds> slots;
  u64 shard_count;
  bool rank0_empty;  // with 2 shards or more
};

struct FusedReorderOut {
  u64* ids;          // room for all: by shard, then by slot, as first seen
  i32* shard_sizes;  // [shards]
  i32* slot_sizes;   // [shards, slots]
  i32* offsets;      // one an input id: where its vector starts if every id of `ids` has one
};

struct Reordered {
  u64 ids, values;  // values: of all vectors; 2^63 stands for anything larger
};

// With 2^31 values or more, or as many ids, nothing but the offsets' room is written: offsets are
// 32-bit.
Reordered fused_reorder(const FusedReorderArgs& args, const FusedReorderOut& out);

}  // namespace hedgerow
