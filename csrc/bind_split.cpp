// Splits, distinct keys with their offsets, and filled buffers: the ops of the parameter-server
// path.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bind.h"
#include "fill.h"
#include "split.h"
#include "unique_offsets.h"

namespace hedgerow {
namespace {

using Addresses = std::vector<Address>;

SplitPlan split_plan(Address indices, u64 n, u64 splits, u64 blocks, Address starts) {
  return {at<i64>(indices), n, splits, blocks, at<i64>(starts)};
}

template <class T>
T* const* all_at(const Addresses& parts) {
  static_assert(sizeof(T*) == sizeof(Address));
  return reinterpret_cast<T* const*>(parts.data());
}

void bind_splits(nb::module_& m) {
  m.def(
      "plan_split",
      [](Address indices, u64 n, u64 splits, u64 blocks, Address starts, Address sizes) {
        return plan_split(split_plan(indices, n, splits, blocks, starts), at<i64>(sizes));
      },
      unlocked);
  m.def(
      "split_rows",
      [](Address indices, u64 n, u64 splits, u64 blocks, Address starts, Address rows,
         u64 row_bytes, const Addresses& parts) {
        split_rows(split_plan(indices, n, splits, blocks, starts), at<u8>(rows), row_bytes,
                   all_at<u8>(parts));
      },
      unlocked);
  m.def(
      "join_rows",
      [](Address indices, u64 n, u64 splits, u64 blocks, Address starts, const Addresses& parts,
         u64 row_bytes, Address rows) {
        join_rows(split_plan(indices, n, splits, blocks, starts), all_at<const u8>(parts),
                  row_bytes, at<u8>(rows));
      },
      unlocked);
  m.def(
      "split_ragged",
      [](Address indices, u64 n, u64 splits, u64 blocks, Address starts, Address values,
         Address row_splits, u64 rows, const Addresses& value_parts,
         const Addresses& position_parts, Address part_splits) {
        split_ragged(split_plan(indices, n, splits, blocks, starts), at<i64>(values),
                     at<i64>(row_splits), rows, all_at<i64>(value_parts),
                     all_at<i64>(position_parts), at<i64>(part_splits));
      },
      unlocked);
}

void bind_unique(nb::module_& m) {
  m.def(
      "unique_with_offsets",
      [](Address keys, Address row_splits, const std::vector<i64>& dims, Address distinct,
         Address distinct_splits, Address offsets, Address inner_splits) {
        return unique_with_offsets(
            {at<u64>(keys), at<i64>(row_splits), dims.data(), dims.size()},
            {at<u64>(distinct), at<i64>(distinct_splits), at<i64>(offsets), at<i64>(inner_splits)});
      },
      unlocked);
}

KeyPart key_part(Address keys, Address row_splits, const std::vector<i64>& dims) {
  return {at<i64>(keys), at<i64>(row_splits), dims.data(), dims.size()};
}

KeyOffsets key_offsets(Address offsets, u64 n, Address inner_splits, u64 keys) {
  return {at<i64>(offsets), n, at<i64>(inner_splits), keys};
}

void bind_fill(nb::module_& m) {
  m.def(
      "check_part",
      [](Address keys, Address row_splits, const std::vector<i64>& dims, Address offsets, u64 n,
         Address inner_splits, u64 known, u64 floats) {
        const PartCheck found = check_part(key_part(keys, row_splits, dims),
                                           key_offsets(offsets, n, inner_splits, known), floats);
        return std::tuple(int(found.fault), found.at);
      },
      unlocked);
  m.def(
      "mark_keys",
      [](Address keys, u64 n, Address seen) { return mark_keys(at<i64>(keys), n, at<u8>(seen)); },
      unlocked);
  m.def(
      "fill_windows",
      [](Address keys, Address row_splits, const std::vector<i64>& dims, Address offsets, u64 n,
         Address inner_splits, u64 known, Address values, u64 value_bytes, Address buffer,
         bool in_order) {
        fill_windows(key_part(keys, row_splits, dims), key_offsets(offsets, n, inner_splits, known),
                     at<u8>(values), value_bytes, at<u8>(buffer),
                     in_order ? RepeatedKeys::last_stays : RepeatedKeys::any_order);
      },
      unlocked);
  m.def(
      "sum_windows",
      [](Address keys, Address row_splits, const std::vector<i64>& dims, Address offsets, u64 n,
         Address inner_splits, u64 known, Address grad, bool wide, Address out) {
        const KeyPart part = key_part(keys, row_splits, dims);
        const KeyOffsets where = key_offsets(offsets, n, inner_splits, known);
        if (wide) {
          sum_windows(part, where, at<double>(grad), at<double>(out));
        } else {
          sum_windows(part, where, at<float>(grad), at<float>(out));
        }
      },
      unlocked);
}

}  // namespace

void bind_split(nb::module_& m) {
  bind_splits(m);
  bind_unique(m);
  bind_fill(m);
}

}  // namespace hedgerow
