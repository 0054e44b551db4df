// Distinct keys row by row, the rows shared with the pool.
#include "unique_offsets.h"

#include <algorithm>
#include <atomic>

#include "id_map.h"
#include "pool.h"

namespace hedgerow {
namespace {

// One row. Its distinct keys and the ends of their offsets are written at the row's own place,
// which has room for all of them; later they move together. The offsets are where they belong: a
// row has as many as keys.
u64 unique_row(const RaggedKeys& from, const UniqueOffsets& to, u64 row, i64 first_offset,
               IdMap& map, u32* numbers) {
  const u64 start = u64(from.row_splits[row]);
  const u64 n = u64(from.row_splits[row + 1]) - start;
  const u64* keys = from.keys + start;
  u64* distinct = to.keys + start;
  i64* ends = to.inner_splits + 1 + start;
  map.start(n);
  u32 found = 0;
  map.each(
      n, [&](u64 i) { return keys[i]; },
      [&](u64 i, u64 home) {
        const u32 number = map.insert(keys[i], found, home);
        if (number == found) {
          distinct[found] = keys[i];
          ends[found++] = 0;
        }
        ++ends[number];
        numbers[i] = number;
      });
  i64 next = i64(start);  // counts become starts, and the writing makes ends of them
  for (u32 k = 0; k < found; ++k) {
    const i64 count = ends[k];
    ends[k] = next;
    next += count;
  }
  const i64 dim = from.dims[row];
  for (u64 i = 0; i < n; ++i) to.offsets[ends[numbers[i]]++] = first_offset + i64(i) * dim;
  return found;
}

}  // namespace

u64 unique_with_offsets(const RaggedKeys& from, const UniqueOffsets& to) {
  const CallScope scope;
  const u64 n = u64(from.row_splits[from.rows]);
  const Scratch<i64> first_offsets(from.rows);
  const Scratch<u32> numbers(n);
  i64 floats = 0;
  for (u64 row = 0; row < from.rows; ++row) {
    first_offsets[row] = floats;
    floats += (from.row_splits[row + 1] - from.row_splits[row]) * from.dims[row];
  }
  // A map for each thread, not for each row: one that was used is warm.
  std::atomic<u64> next_row{0};
  parallel_for(std::min<i64>(thread_count(), i64(from.rows)), [&](i64) {
    IdMap map;
    for (u64 row; (row = next_row.fetch_add(1, std::memory_order_relaxed)) < from.rows;)
      to.row_splits[row + 1] = i64(unique_row(from, to, row, first_offsets[row], map,
                                              numbers.data() + from.row_splits[row]));
  });
  u64 distinct = 0;
  to.row_splits[0] = 0;
  to.inner_splits[0] = 0;
  for (u64 row = 0; row < from.rows; ++row) {
    const u64 start = u64(from.row_splits[row]);
    const u64 found = u64(to.row_splits[row + 1]);
    if (distinct != start) {
      std::copy_n(to.keys + start, found, to.keys + distinct);
      std::copy_n(to.inner_splits + 1 + start, found, to.inner_splits + 1 + distinct);
    }
    distinct += found;
    to.row_splits[row + 1] = i64(distinct);
  }
  return distinct;
}

}  // namespace hedgerow
