// The loops over windows.
#include "windows.h"

#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "byte_copy.h"
#include "memory.h"
#include "scratch.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 16;  // windows that are being fetched

template <class Offset>
i64 first_outside(std::span<const Windows<Offset>> tables, u64 size) {
  u64 before = 0;
  for (const Windows<Offset>& table : tables) {
    const auto outside = [&](Offset offset) {
      return offset < 0 || table.dim > size || u64(offset) > size - table.dim;
    };
    const Offset* const end = table.offsets + table.n;
    const Offset* const found = std::find_if(table.offsets, end, outside);
    if (found != end) return i64(before + u64(found - table.offsets));
    before += table.n;
  }
  return -1;
}

template <class Offset>
u64 total_bytes(std::span<const Windows<Offset>> tables, u64 value_bytes) {
  u64 bytes = 0;
  for (const Windows<Offset>& table : tables) bytes += table.n * table.dim * value_bytes;
  return bytes;
}

template <class Offset>
void copy_some(const Windows<Offset>& table, u64 from, u64 to, u64 value_bytes, const u8* values) {
  with_bytes(table.dim * value_bytes, [&](auto bytes) {
    const auto window = [&](u64 i) { return values + u64(table.offsets[i]) * value_bytes; };
    for (u64 i = from; i < to; ++i) {
      if (i + kAhead < to) fetch_bytes(window(i + kAhead), bytes);
      std::memcpy(table.rows + i * bytes, window(i), bytes);
    }
  });
}

// What falls into the sums [from, to).
template <class Offset, class Value>
void add_part(std::span<const Windows<Offset>> tables, Value scale, Value* sums, u64 from, u64 to) {
  std::fill(sums + from, sums + to, Value(0));
  for (const Windows<Offset>& table : tables) {
    const Value* const grads = reinterpret_cast<const Value*>(table.rows);
    for (u64 i = 0; i < table.n; ++i) {
      const u64 offset = u64(table.offsets[i]);
      const u64 first = std::max(offset, from), last = std::min(offset + table.dim, to);
      if (first >= last) continue;
      const Value* __restrict grad = grads + i * table.dim + (first - offset);
      Value* __restrict sum = sums + first;
      for (u64 c = 0; c < last - first; ++c) sum[c] += grad[c] * scale;
    }
  }
}

}  // namespace

template <class Offset>
i64 copy_windows(std::span<const Windows<Offset>> tables, u64 value_bytes, const u8* values,
                 u64 size) {
  const CallScope scope;
  if (const i64 outside = first_outside(tables, size); outside >= 0) return outside;
  // Blocks of all tables, numbered through, so that one large table is shared too.
  Scratch<u64> first_block(tables.size() + 1);
  first_block[0] = 0;
  for (u64 t = 0; t < tables.size(); ++t) {
    ask_for_huge_pages(tables[t].rows, tables[t].n * tables[t].dim * value_bytes);
    first_block[t + 1] = first_block[t] + (tables[t].n + kBlockRows - 1) / kBlockRows;
  }
  const auto copy_block = [&](u64 block) {
    const u64* const next = std::upper_bound(first_block.begin(), first_block.end(), block);
    const u64 t = u64(next - first_block.begin()) - 1;
    const u64 from = (block - first_block[t]) * kBlockRows;
    copy_some(tables[t], from, std::min(tables[t].n, from + kBlockRows), value_bytes, values);
  };
  const u64 blocks = first_block[tables.size()];
  if (total_bytes(tables, value_bytes) >= kWorthThreads)
    parallel_for(i64(blocks), [&](i64 block) { copy_block(u64(block)); });
  else
    for (u64 block = 0; block < blocks; ++block) copy_block(block);
  return -1;
}

template <class Offset, class Value>
i64 add_windows(std::span<const Windows<Offset>> tables, Value scale, Value* sums, u64 size) {
  const CallScope scope;
  if (const i64 outside = first_outside(tables, size); outside >= 0) return outside;
  ask_for_huge_pages(sums, size * sizeof(Value));
  for_parts(size, total_bytes(tables, sizeof(Value)) >= kWorthThreads,
            [&](u64 from, u64 to) { add_part(tables, scale, sums, from, to); });
  return -1;
}

using i32 = std::int32_t;
template i64 copy_windows(std::span<const Windows<i32>>, u64, const u8*, u64);
template i64 copy_windows(std::span<const Windows<i64>>, u64, const u8*, u64);
template i64 add_windows(std::span<const Windows<i32>>, float, float*, u64);
template i64 add_windows(std::span<const Windows<i64>>, float, float*, u64);
template i64 add_windows(std::span<const Windows<i32>>, double, double*, u64);
template i64 add_windows(std::span<const Windows<i64>>, double, double*, u64);

}  // namespace hedgerow
