// Rows by id, windows, and the reordering for an exchange between all ranks.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bind.h"
#include "reorder.h"
#include "take_rows.h"
#include "windows.h"

namespace hedgerow {
namespace {

using Addresses = std::vector<Address>;
using Sizes = std::vector<u64>;

Threads threads(bool many) { return many ? Threads::all : Threads::one; }

std::vector<RowList> row_lists(const Addresses& rows, const Sizes& lengths) {
  std::vector<RowList> lists;
  for (std::size_t i = 0; i < rows.size(); ++i) lists.push_back({at<u8>(rows[i]), lengths.at(i)});
  return lists;
}

template <class Offset>
std::vector<Windows<Offset>> windows(const Addresses& offsets, const Sizes& lengths,
                                     const Sizes& dims, const Addresses& rows) {
  std::vector<Windows<Offset>> tables;
  for (std::size_t i = 0; i < rows.size(); ++i)
    tables.push_back({at<Offset>(offsets.at(i)), lengths.at(i), dims.at(i), at<u8>(rows[i])});
  return tables;
}

// Calls body with windows of the type that the width of an offset tells.
template <class Body>
i64 with_windows(u64 offset_bytes, const Addresses& offsets, const Sizes& lengths,
                 const Sizes& dims, const Addresses& rows, Body&& body) {
  if (offset_bytes == sizeof(i32)) {
    const auto tables = windows<i32>(offsets, lengths, dims, rows);
    return body(std::span<const Windows<i32>>(tables));
  }
  const auto tables = windows<i64>(offsets, lengths, dims, rows);
  return body(std::span<const Windows<i64>>(tables));
}

void bind_rows(nb::module_& m) {
  m.def(
      "find_rows",
      [](const Addresses& ids, const Sizes& lengths, Address queries, u64 n, bool many,
         Address out) {
        std::vector<IdList> lists;
        for (std::size_t i = 0; i < ids.size(); ++i)
          lists.push_back({at<u64>(ids[i]), lengths.at(i)});
        return find_rows(lists, at<u64>(queries), n, threads(many), at<i64>(out));
      },
      unlocked);
  m.def(
      "copy_rows",
      [](const Addresses& rows, const Sizes& lengths, u64 row_bytes, Address numbers, u64 n,
         bool many, Address out) {
        copy_rows(row_lists(rows, lengths), row_bytes, at<i64>(numbers), n, threads(many),
                  at<u8>(out));
      },
      unlocked);
  m.def(
      "add_rows",
      [](const Addresses& rows, const Sizes& lengths, u64 dim, u64 value_bytes, Address numbers,
         u64 n, bool many, Address grads) {
        const auto lists = row_lists(rows, lengths);
        if (value_bytes == sizeof(float))
          add_rows(lists, dim, at<i64>(numbers), n, threads(many), at<const float>(grads));
        else
          add_rows(lists, dim, at<i64>(numbers), n, threads(many), at<const double>(grads));
      },
      unlocked);
}

void bind_windows(nb::module_& m) {
  m.def(
      "copy_windows",
      [](const Addresses& offsets, const Sizes& lengths, const Sizes& dims, u64 offset_bytes,
         u64 value_bytes, Address values, u64 size, const Addresses& rows) {
        return with_windows(offset_bytes, offsets, lengths, dims, rows, [&](auto tables) {
          return copy_windows(tables, value_bytes, at<const u8>(values), size);
        });
      },
      unlocked);
  m.def(
      "add_windows",
      [](const Addresses& offsets, const Sizes& lengths, const Sizes& dims, u64 offset_bytes,
         u64 value_bytes, const Addresses& grads, double scale, Address sums, u64 size) {
        return with_windows(offset_bytes, offsets, lengths, dims, grads, [&](auto tables) {
          if (value_bytes == sizeof(float))
            return add_windows(tables, float(scale), at<float>(sums), size);
          return add_windows(tables, scale, at<double>(sums), size);
        });
      },
      unlocked);
}

void bind_reorder(nb::module_& m) {
  m.def(
      "reorder",
      [](Address keys, int kind, u64 key_stride, Address rows, u64 row_bytes, u64 n, Address shards,
         u64 shard_count, Address out, Address sizes) {
        const ReorderArgs args{at<const u8>(keys),    key_kind(kind), key_stride,
                               at<const u8>(rows),    row_bytes,      n,
                               at<const i32>(shards), shard_count};
        return reorder(args, at<u8>(out), at<i32>(sizes));
      },
      unlocked);
  m.def(
      "fused_reorder",
      [](const Addresses& ids, const Sizes& lengths, const Sizes& dims, u64 shard_count,
         bool rank0_empty, Address out, Address shard_sizes, Address slot_sizes, Address offsets) {
        std::vector<SlotIds> slots;
        for (std::size_t i = 0; i < ids.size(); ++i)
          slots.push_back({at<const u64>(ids[i]), lengths.at(i), dims.at(i)});
        const FusedReorderArgs args{slots, shard_count, rank0_empty};
        const Reordered made = fused_reorder(
            args, {at<u64>(out), at<i32>(shard_sizes), at<i32>(slot_sizes), at<i32>(offsets)});
        return std::pair(made.ids, made.values);
      },
      unlocked);
}

}  // namespace

void bind_gather(nb::module_& m) {
  bind_rows(m);
  bind_windows(m);
  bind_reorder(m);
}

}  // namespace hedgerow
