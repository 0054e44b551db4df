// The loops over the entries of a part.
#include "fill.h"

#include <algorithm>
#include <cstring>

#include "pool.h"
#include "scratch.h"

namespace hedgerow {
namespace {

constexpr u64 kEntries = 4096;  // of one task
constexpr u64 kAhead = 8;       // entries whose windows are in flight

u64 entries(const KeyPart& part) { return u64(part.row_splits[part.rows]); }

// Calls body(row, from, to) for the entries of one task, cut where rows end.
template <class Body>
void each_row(const KeyPart& part, u64 from, u64 to, Body&& body) {
  const i64* end = part.row_splits + part.rows + 1;
  u64 row = u64(std::upper_bound(part.row_splits, end, i64(from)) - part.row_splits) - 1;
  for (; from < to; ++row) {
    const u64 stop = std::min(to, u64(part.row_splits[row + 1]));
    if (from < stop) body(row, from, stop);
    from = std::max(from, stop);
  }
}

template <class Body>
void each_task(const KeyPart& part, RepeatedKeys repeated, Body&& body) {
  const u64 n = entries(part);
  const u64 tasks = (n + kEntries - 1) / kEntries;
  const auto run = [&](i64 task) {
    const u64 from = u64(task) * kEntries;
    each_row(part, from, std::min(n, from + kEntries), body);
  };
  if (repeated == RepeatedKeys::any_order) return parallel_for(i64(tasks), run);
  for (u64 task = 0; task < tasks; ++task) run(i64(task));
}

// Values that lie before the first of each row.
Scratch<u64> values_before(const KeyPart& part) {
  Scratch<u64> before(part.rows);
  u64 values = 0;
  for (u64 row = 0; row < part.rows; ++row) {
    before[row] = values;
    values += u64(part.row_splits[row + 1] - part.row_splits[row]) * u64(part.dims[row]);
  }
  return before;
}

HR_INLINE void fetch_first(const KeyPart& part, const KeyOffsets& where, u64 entry,
                           const void* values, u64 value_bytes, u64 dim) {
  const u64 first = u64(where.inner_splits[part.keys[entry]]);
  if (first < where.n)
    fetch_bytes(static_cast<const u8*>(values) + u64(where.offsets[first]) * value_bytes,
                dim * value_bytes);
}

template <u64 kBytes>
HR_INLINE void copy(u8* to, const u8* from, u64 bytes) {
  if constexpr (kBytes != 0) {
    std::memcpy(to, from, kBytes);
  } else {
    u64 done = 0;
    for (; done + 16 <= bytes; done += 16) std::memcpy(to + done, from + done, 16);
    for (; done + 4 <= bytes; done += 4) std::memcpy(to + done, from + done, 4);
    for (; done < bytes; ++done) to[done] = from[done];
  }
}

struct Run {
  const KeyPart& part;
  const KeyOffsets& where;
  u64 from, to, dim;
};

// Entries of one row; `values` is the first one's vector.
template <u64 kBytes>
void fill_row(const Run& run, const u8* values, u64 value_bytes, u8* buffer) {
  const u64 bytes = kBytes != 0 ? kBytes : run.dim * value_bytes;
  for (u64 entry = run.from; entry < run.to; ++entry, values += bytes) {
    if (entry + kAhead < run.to)
      fetch_first(run.part, run.where, entry + kAhead, buffer, value_bytes, run.dim);
    const i64* borders = run.where.inner_splits + run.part.keys[entry];
    for (i64 at = borders[0]; at < borders[1]; ++at)
      copy<kBytes>(buffer + u64(run.where.offsets[at]) * value_bytes, values, bytes);
  }
}

}  // namespace

PartCheck check_part(const KeyPart& part, const KeyOffsets& where, u64 floats) {
  const CallScope scope;
  const u64 tasks = (entries(part) + kEntries - 1) / kEntries;
  const Scratch<PartCheck> found(tasks);
  std::fill(found.begin(), found.end(), PartCheck{PartFault::none, 0});
  each_task(part, RepeatedKeys::any_order, [&](u64 row, u64 from, u64 to) {
    PartCheck& first = found[from / kEntries];
    const u64 dim = u64(part.dims[row]);
    for (u64 entry = from; entry < to && first.fault == PartFault::none; ++entry) {
      const u64 key = u64(part.keys[entry]);
      if (key >= where.keys) {
        first = {PartFault::key, entry};
        continue;
      }
      const u64 begin = u64(where.inner_splits[key]), end = u64(where.inner_splits[key + 1]);
      if (begin > end || end > where.n) {
        first = {PartFault::borders, entry};
        continue;
      }
      bool inside = dim <= floats;
      for (u64 at = begin; at < end; ++at) inside &= u64(where.offsets[at]) <= floats - dim;
      if (!inside && begin < end) first = {PartFault::window, entry};
    }
  });
  for (const PartCheck& first : found)
    if (first.fault != PartFault::none) return first;
  return {PartFault::none, 0};
}

bool mark_keys(const i64* keys, u64 n, u8* seen) {
  u8 before = 0;
  for (u64 entry = 0; entry < n; ++entry) {
    u8& mark = seen[keys[entry]];
    before |= mark;
    mark = 1;
  }
  return before != 0;
}

void fill_windows(const KeyPart& part, const KeyOffsets& where, const u8* values, u64 value_bytes,
                  u8* buffer, RepeatedKeys repeated) {
  const CallScope scope;
  const Scratch<u64> before = values_before(part);
  each_task(part, repeated, [&](u64 row, u64 from, u64 to) {
    const Run run{part, where, from, to, u64(part.dims[row])};
    const u64 skipped = (from - u64(part.row_splits[row])) * run.dim;
    const u8* first = values + (before[row] + skipped) * value_bytes;
    switch (run.dim * value_bytes) {
      case 16:
        return fill_row<16>(run, first, value_bytes, buffer);
      case 32:
        return fill_row<32>(run, first, value_bytes, buffer);
      case 64:
        return fill_row<64>(run, first, value_bytes, buffer);
      case 128:
        return fill_row<128>(run, first, value_bytes, buffer);
      default:
        return fill_row<0>(run, first, value_bytes, buffer);
    }
  });
}

template <class Float>
void sum_windows(const KeyPart& part, const KeyOffsets& where, const Float* grad, Float* out) {
  const CallScope scope;
  const Scratch<u64> before = values_before(part);
  each_task(part, RepeatedKeys::any_order, [&](u64 row, u64 from, u64 to) {
    const u64 dim = u64(part.dims[row]);
    Float* sum = out + before[row] + (from - u64(part.row_splits[row])) * dim;
    for (u64 entry = from; entry < to; ++entry, sum += dim) {
      if (entry + kAhead < to) fetch_first(part, where, entry + kAhead, grad, sizeof(Float), dim);
      const i64* borders = where.inner_splits + part.keys[entry];
      if (borders[0] == borders[1]) {
        std::fill_n(sum, dim, Float(0));
        continue;
      }
      copy<0>(reinterpret_cast<u8*>(sum),
              reinterpret_cast<const u8*>(grad + where.offsets[borders[0]]), dim * sizeof(Float));
      for (i64 at = borders[0] + 1; at < borders[1]; ++at) {
        const Float* __restrict window = grad + where.offsets[at];
        Float* __restrict to_sum = sum;
        for (u64 c = 0; c < dim; ++c) to_sum[c] += window[c];
      }
    }
  });
}

template void sum_windows(const KeyPart&, const KeyOffsets&, const float*, float*);
template void sum_windows(const KeyPart&, const KeyOffsets&, const double*, double*);

}  // namespace hedgerow
