// The passes of a split.
#include "split.h"

#include <algorithm>
#include <cstring>

#include "pool.h"
#include "scratch.h"

namespace hedgerow {
namespace {

struct Block {
  u64 from, to;
};

Block block_of(const SplitPlan& plan, i64 task) {
  return {plan.n * u64(task) / plan.blocks, plan.n * u64(task + 1) / plan.blocks};
}

// The first bad place, or -1. Indices often repeat, and a counter that was just written is slow to
// read again: two counters take turns.
i64 count_block(const SplitPlan& plan, Block block, i64* counts) {
  const Scratch<i64> odd(plan.splits);
  std::fill_n(counts, plan.splits, 0);
  std::fill_n(odd.data(), plan.splits, 0);
  const auto bad = [&](u64 i) { return u64(plan.indices[i]) >= plan.splits; };
  u64 i = block.from;
  for (; i + 1 < block.to; i += 2) {
    if (__builtin_expect(bad(i) | bad(i + 1), 0)) return i64(bad(i) ? i : i + 1);
    ++counts[plan.indices[i]];
    ++odd[u64(plan.indices[i + 1])];
  }
  if (i < block.to) {
    if (bad(i)) return i64(i);
    ++counts[plan.indices[i]];
  }
  for (u64 k = 0; k < plan.splits; ++k) counts[k] += odd[k];
  return -1;
}

// Widths known to the compiler: a call of memcpy costs more than a short copy.
template <u64 kBytes>
struct Fixed {
  u64 bytes() const { return kBytes; }
  HR_INLINE void copy(u8* to, const u8* from) const { std::memcpy(to, from, kBytes); }
};

struct Chunks {
  u64 width;
  u64 bytes() const { return width; }
  HR_INLINE void copy(u8* to, const u8* from) const {
    u64 done = 0;
    for (; done + 16 <= width; done += 16) std::memcpy(to + done, from + done, 16);
    for (; done + 4 <= width; done += 4) std::memcpy(to + done, from + done, 4);
    for (; done < width; ++done) to[done] = from[done];
  }
};

template <class Body>
void with_width(u64 row_bytes, Body&& body) {
  switch (row_bytes) {
    case 4:
      return body(Fixed<4>());
    case 8:
      return body(Fixed<8>());
    case 16:
      return body(Fixed<16>());
    case 32:
      return body(Fixed<32>());
    case 64:
      return body(Fixed<64>());
    case 128:
      return body(Fixed<128>());
    default:
      return body(Chunks{row_bytes});
  }
}

// Where the next row of each split lies in its part.
template <class Byte>
Scratch<Byte*> cursors(const SplitPlan& plan, i64 block, Byte* const* parts, u64 row_bytes) {
  Scratch<Byte*> next(plan.splits);
  const i64* starts = plan.starts + u64(block) * plan.splits;
  for (u64 k = 0; k < plan.splits; ++k) next[k] = parts[k] + u64(starts[k]) * row_bytes;
  return next;
}

}  // namespace

i64 plan_split(const SplitPlan& plan, i64* sizes) {
  const CallScope scope;
  const Scratch<i64> bad(plan.blocks);
  parallel_for(i64(plan.blocks), [&](i64 task) {
    bad[u64(task)] = count_block(plan, block_of(plan, task), plan.starts + u64(task) * plan.splits);
  });
  for (const i64 place : bad)
    if (place >= 0) return place;
  std::fill_n(sizes, plan.splits, 0);
  for (u64 block = 0; block < plan.blocks; ++block)
    for (u64 k = 0; k < plan.splits; ++k) {
      i64& start = plan.starts[block * plan.splits + k];
      const i64 count = start;
      start = sizes[k];
      sizes[k] += count;
    }
  return -1;
}

void split_rows(const SplitPlan& plan, const u8* rows, u64 row_bytes, u8* const* parts) {
  const CallScope scope;
  with_width(row_bytes, [&](auto width) {
    parallel_for(i64(plan.blocks), [&](i64 task) {
      const Scratch<u8*> next = cursors(plan, task, parts, row_bytes);
      const Block block = block_of(plan, task);
      for (u64 i = block.from; i < block.to; ++i) {
        u8*& to = next[u64(plan.indices[i])];
        width.copy(to, rows + i * width.bytes());
        to += width.bytes();
      }
    });
  });
}

void join_rows(const SplitPlan& plan, const u8* const* parts, u64 row_bytes, u8* rows) {
  const CallScope scope;
  with_width(row_bytes, [&](auto width) {
    parallel_for(i64(plan.blocks), [&](i64 task) {
      const Scratch<const u8*> next = cursors(plan, task, parts, row_bytes);
      const Block block = block_of(plan, task);
      for (u64 i = block.from; i < block.to; ++i) {
        const u8*& from = next[u64(plan.indices[i])];
        width.copy(rows + i * width.bytes(), from);
        from += width.bytes();
      }
    });
  });
}

void split_ragged(const SplitPlan& plan, const i64* values, const i64* row_splits, u64 rows,
                  i64* const* value_parts, i64* const* position_parts, i64* part_splits) {
  const CallScope scope;
  parallel_for(i64(plan.blocks), [&](i64 task) {
    const Block block = block_of(plan, task);
    const Scratch<i64> next(plan.splits);
    std::copy_n(plan.starts + u64(task) * plan.splits, plan.splits, next.data());
    // The borders at places of this block; those at the end of all values are the last block's.
    const bool last = u64(task) + 1 == plan.blocks;
    const i64* border = std::lower_bound(row_splits, row_splits + rows + 1, i64(block.from));
    const i64* const end = last
                               ? row_splits + rows + 1
                               : std::lower_bound(row_splits, row_splits + rows + 1, i64(block.to));
    u64 i = block.from;
    for (; border != end; ++border) {
      for (; i < u64(*border); ++i) {
        const u64 k = u64(plan.indices[i]);
        const u64 at = u64(next[k]++);
        value_parts[k][at] = values[i];
        position_parts[k][at] = i64(i);
      }
      i64* out = part_splits + (border - row_splits);
      for (u64 k = 0; k < plan.splits; ++k) out[k * (rows + 1)] = next[k];
    }
    for (; i < block.to; ++i) {
      const u64 k = u64(plan.indices[i]);
      const u64 at = u64(next[k]++);
      value_parts[k][at] = values[i];
      position_parts[k][at] = i64(i);
    }
  });
}

}  // namespace hedgerow
