// Dedup of one list of rows.
#include "reorder.h"

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "byte_copy.h"
#include "id_map.h"
#include "memory.h"
#include "pool.h"

namespace hedgerow {
namespace {

template <class Value>
struct Keys {
  const u8* from;
  u64 stride;

  Value value(u64 i) const {
    Value value;
    std::memcpy(&value, from + i * stride, sizeof value);
    return value;
  }
  bool equals_nothing(u64 i) const { return value(i) != value(i); }
  u64 bits(u64 i) const {
    if constexpr (std::is_same_v<Value, u64>) {
      return value(i);
    } else {
      return std::bit_cast<u64>(double(value(i)) + 0.0);  // -0 becomes 0
    }
  }
};

// first[k]: the place of the k-th new key; sizes: how many each shard has. How many there are.
template <class Value>
u64 find_new(Keys<Value> keys, const ReorderArgs& args, u32* first, i32* sizes) {
  IdMap map;
  map.start(args.n);
  u32 kept = 0;
  map.each(
      args.n, [&](u64 i) { return keys.bits(i); },
      [&](u64 i, u64 home) {
        if (!keys.equals_nothing(i) && map.insert(keys.bits(i), kept, home) != kept) return;
        first[kept++] = u32(i);
        ++sizes[args.shards[i]];
      });
  return kept;
}

u64 find_new(const ReorderArgs& args, u32* first, i32* sizes) {
  switch (args.kind) {
    case Key::int64:
      return find_new(Keys<u64>{args.keys, args.key_stride}, args, first, sizes);
    case Key::float32:
      return find_new(Keys<float>{args.keys, args.key_stride}, args, first, sizes);
    default:
      return find_new(Keys<double>{args.keys, args.key_stride}, args, first, sizes);
  }
}

}  // namespace

Key key_kind(int number) {
  if (number < int(Key::int64) || number > int(Key::float64))
    throw std::invalid_argument("no kind of keys has the number " + std::to_string(number));
  return Key(number);
}

u64 reorder(const ReorderArgs& args, u8* out, i32* sizes) {
  const CallScope scope;
  const Scratch<u32> first(args.n);
  std::memset(sizes, 0, args.shard_count * sizeof(i32));
  const u64 kept = find_new(args, first.data(), sizes);
  const Scratch<u64> ends(args.shard_count);  // filled from the end: the last seen goes first
  u64 end = 0;
  for (u64 s = 0; s < args.shard_count; ++s) ends[s] = end += u64(sizes[s]);
  with_bytes(args.row_bytes, [&](auto bytes) {
    for (u64 k = 0; k < kept; ++k) {
      const u64 at = --ends[u64(args.shards[first[k]])];
      std::memcpy(out + at * bytes, args.rows + u64(first[k]) * bytes, bytes);
    }
  });
  return kept;
}

}  // namespace hedgerow
