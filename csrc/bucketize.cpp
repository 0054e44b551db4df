// Two passes over blocks of keys: owners and counts, then every key to its place.
//
// Where a block's keys go follows from the counts of the blocks before it, so never from threads.
#include "bucketize.h"

#include <algorithm>
#include <atomic>

#include "pool.h"
#include "scratch.h"

namespace hedgerow {
namespace {

constexpr u64 kBlockKeys = 16384;
constexpr u64 kMostBlocks = 1024;
constexpr u64 kZeroPart = u64(1) << 16;

struct Block {
  u64 from, to;
};

class Bucketizer {
 public:
  Bucketizer(const BucketInput& in, const BucketOutput& out)
      : in_(in),
        out_(out),
        n_(u64(in.row_splits[in.rows])),
        blocks_(std::clamp<u64>(n_ / kBlockKeys, 1, kMostBlocks)),
        owners_(n_),
        local_(renamed() ? n_ : 0),
        starts_(blocks_ * in.shards) {}

  void run() {
    zero_lengths();
    each_block([&](u64 number, Block block) { count(number, block); });
    add_up();
    each_block([&](u64 number, Block block) { move(number, block); });
  }

 private:
  bool renamed() const {
    return in_.names == KeyNames::local &&
           std::any_of(in_.rules, in_.rules + in_.features, renames);
  }

  template <class Body>
  void each_block(Body&& body) {
    const auto one = [&](i64 number) {
      const u64 from = n_ * u64(number) / blocks_, to = n_ * u64(number + 1) / blocks_;
      body(u64(number), Block{from, to});
    };
    if (blocks_ == 1) return one(0);
    parallel_for(i64(blocks_), one);
  }

  void zero_lengths() {
    const u64 size = in_.shards * in_.rows, parts = (size + kZeroPart - 1) / kZeroPart;
    const auto zero = [&](i64 part) {
      const u64 from = u64(part) * kZeroPart;
      std::fill_n(out_.lengths + from, std::min(kZeroPart, size - from), 0);
    };
    if (parts == 1) return zero(0);
    parallel_for(i64(parts), zero);
  }

  // body(row, from, to) for every piece of a row in the block that has keys.
  template <class Body>
  HR_INLINE void each_row(Block block, Body&& body) {
    if (block.from == block.to) return;
    const i64* const end = in_.row_splits + in_.rows + 1;
    u64 row = u64(std::upper_bound(in_.row_splits, end, i64(block.from)) - in_.row_splits) - 1;
    for (u64 from = block.from; from < block.to; ++row) {
      const u64 to = std::min(block.to, u64(in_.row_splits[row + 1]));
      if (from < to) body(row, from, to);
      from = to;
    }
  }

  void find_owners(Block block) {
    for (u64 f = 0; f < in_.features; ++f) {
      const u64 from = std::max(block.from, u64(in_.row_splits[in_.feature_rows[f]]));
      const u64 to = std::min(block.to, u64(in_.row_splits[in_.feature_rows[f + 1]]));
      if (from >= to) continue;
      u64* const local = local_.size() ? local_.data() + from : nullptr;
      route_part(in_.rules[f], in_.keys + from, to - from, owners_.data() + from, local);
    }
  }

  void count(u64 number, Block block) {
    find_owners(block);
    i64* const counts = starts_.data() + number * in_.shards;
    std::fill_n(counts, in_.shards, 0);
    each_row(block, [&](u64 row, u64 from, u64 to) {
      const bool shared = u64(in_.row_splits[row]) < from || to < u64(in_.row_splits[row + 1]);
      if (shared) return count_shared(row, from, to, counts);
      for (u64 i = from; i < to; ++i) {
        ++counts[owners_[i]];
        ++out_.lengths[owners_[i] * in_.rows + row];
      }
    });
  }

  // A piece of a row that other blocks have pieces of, too.
  void count_shared(u64 row, u64 from, u64 to, i64* counts) {
    const Scratch<i64> here(in_.shards);
    std::fill_n(here.data(), in_.shards, 0);
    for (u64 i = from; i < to; ++i) ++here[owners_[i]];
    for (u64 p = 0; p < in_.shards; ++p) {
      if (!here[p]) continue;
      counts[p] += here[p];
      std::atomic_ref(out_.lengths[p * in_.rows + row])
          .fetch_add(here[p], std::memory_order_relaxed);
    }
  }

  // Counts become the place of the first key of each block and owner.
  void add_up() {
    i64 next = 0;
    for (u64 p = 0; p < in_.shards; ++p)
      for (u64 block = 0; block < blocks_; ++block) {
        i64& start = starts_[block * in_.shards + p];
        const i64 count = start;
        start = next;
        next += count;
      }
  }

  void move(u64 number, Block block) {
    i64* const next = starts_.data() + number * in_.shards;
    const u64* const keys = local_.size() ? local_.data() : in_.keys;
    const bool more = out_.weights || out_.positions;
    if (!more && !out_.places) {
      for (u64 i = block.from; i < block.to; ++i) out_.keys[next[owners_[i]]++] = keys[i];
    } else if (!more) {
      for (u64 i = block.from; i < block.to; ++i) {
        const i64 to = next[owners_[i]]++;
        out_.keys[to] = keys[i];
        out_.places[i] = to;
      }
    } else {
      move_more(block, next, keys);
    }
  }

  void move_more(Block block, i64* next, const u64* keys) {
    each_row(block, [&](u64 row, u64 from, u64 to) {
      const i64 start = in_.row_splits[row];
      for (u64 i = from; i < to; ++i) {
        const i64 place = next[owners_[i]]++;
        out_.keys[place] = keys[i];
        if (out_.weights) out_.weights[place] = in_.weights[i];
        if (out_.positions) out_.positions[place] = i64(i) - start;
        if (out_.places) out_.places[i] = place;
      }
    });
  }

  const BucketInput& in_;
  const BucketOutput& out_;
  const u64 n_, blocks_;
  const Scratch<u32> owners_;
  const Scratch<u64> local_;
  const Scratch<i64> starts_;  // [blocks, shards]
};

}  // namespace

void bucketize(const BucketInput& in, const BucketOutput& out) {
  for (u64 f = 0; f < in.features; ++f) check_rule(in.rules[f]);
  const CallScope scope;
  Bucketizer(in, out).run();
}

}  // namespace hedgerow
