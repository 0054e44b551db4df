// The passes of a split.
#include "split.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "pool.h"
#include "row_copy.h"
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
  void finish() const {}
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
  void finish() const {}
};

#if defined(__x86_64__)
// Whole lines past the caches: an ordinary store would first read the line that it overwrites.
struct Streamed {
  u64 width;
  u64 bytes() const { return width; }
  HR_INLINE void copy(u8* to, const u8* from) const {
    for (u64 done = 0; done < width; done += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  void finish() const { finish_streaming(); }
};
#endif

constexpr u64 kLine = 64;
constexpr u64 kFreshFrom = u64(32) << 20;
constexpr u64 kStreamFrom = u64(8) << 20;  // bytes of output, about what the caches of a core hold

template <class Body>
void with_width(u64 row_bytes, bool stream, Body&& body) {
#if defined(__x86_64__)
  if (stream) return body(Streamed{row_bytes});
#endif
  (void)stream;
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

// Not into memory that was never written: there the system has just zeroed the line in the cache.
// The C library takes blocks from 32 MiB on anew from the system each time.
bool streams(const SplitPlan& plan, u64 row_bytes, const void* const* outputs, u64 count) {
  const u64 total = plan.n * row_bytes;
  const auto whole = [](const void* output) { return u64(output) % kLine == 0; };
  return row_bytes % kLine == 0 && total >= kStreamFrom && total / count < kFreshFrom &&
         std::all_of(outputs, outputs + count, whole);
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
  const bool stream =
      streams(plan, row_bytes, reinterpret_cast<const void* const*>(parts), plan.splits);
  with_width(row_bytes, stream, [&](auto width) {
    parallel_for(i64(plan.blocks), [&](i64 task) {
      const Scratch<u8*> next = cursors(plan, task, parts, row_bytes);
      const Block block = block_of(plan, task);
      for (u64 i = block.from; i < block.to; ++i) {
        u8*& to = next[u64(plan.indices[i])];
        width.copy(to, rows + i * width.bytes());
        to += width.bytes();
      }
      width.finish();
    });
  });
}

void join_rows(const SplitPlan& plan, const u8* const* parts, u64 row_bytes, u8* rows) {
  const CallScope scope;
  const void* const output = rows;
  with_width(row_bytes, streams(plan, row_bytes, &output, 1), [&](auto width) {
    parallel_for(i64(plan.blocks), [&](i64 task) {
      const Scratch<const u8*> next = cursors(plan, task, parts, row_bytes);
      const Block block = block_of(plan, task);
      for (u64 i = block.from; i < block.to; ++i) {
        const u8*& from = next[u64(plan.indices[i])];
        width.copy(rows + i * width.bytes(), from);
        from += width.bytes();
      }
      width.finish();
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
