// What all writing verbs share: small batches of ids on their way through a shard, and access to
// the table's rows.
//
// An op decides for every id of a batch whether its row is needed (`prepare`), says how a row is
// born (`born`) and changes the rows (`change`). It is shared by all threads of a call; what a
// thread needs for itself is in its Worker. `kInserts`: it may bring new keys. `kLearns`: what it
// writes counts as touched for every consumer of touched keys, not only for those of all changes.
// `earliest`, of those that insert: the smallest stamp that it gives. `kMoves`, where it is
// declared: the rows go to or come from another store of the same table, so no consumer is told and
// nothing is counted.
#pragma once

#include <cstring>
#include <span>

#include "table.h"

namespace hedgerow {

inline constexpr u64 kBatch = 16;  // ids worked on at once: their rows and values fit the cache

enum class Verdict : u8 { write, drop, erase };
using Occurrences = std::span<const u32>;

template <class Op>
concept Moves = requires { Op::kMoves; };

struct Batch {
  std::span<Group> groups;
  u8* row[kBatch];          // null: absent before `prepare`, not to be written after it
  Verdict verdict[kBatch];  // given by `prepare`
  bool born[kBatch];
};

struct WriteOps {
  static const RowLayout& layout(const Table& table) { return table.layout_; }
  static u64 seed(const Table& table) { return table.seed_; }
  // Row `i` of a batch was written with this stamp, which counts as so many uses of the row.
  static void stamp(const Table& table, const Batch& batch, u64 i, i64 given, u64 uses) {
    table.stamp(batch.groups[i].row, given, batch.born[i], uses);
  }
  // As it is, whatever it holds.
  static void set_stamp(const Table& table, const Group& group, i64 stamp) {
    *table.arena_.time(group.row) = stamp;
  }
  static bool skips(const Table& table, const float* values) {
    if (!table.skip_zero_) return false;
    float squares = 0;
    for (int i = 0; i < table.layout_.dim; ++i) squares += values[i] * values[i];
    return squares < 0x1p-126f;  // zero, or too small for a normal float
  }
  static void start_state(const Table& table, u8* row) {
    if (!table.layout_.serving) table.start_state(reinterpret_cast<float*>(row));
  }
  static void start_values(const Table& table, u64 key, float* values) {
    table.start_values(key, values);
  }
  // The raw values of a row that is there.
  static void get(const Table& table, const u8* row, float* values) {
    if (table.layout_.serving) return table.decode_row(row, values);
    std::memcpy(values, row, sizeof(float) * table.layout_.dim);
  }
  static void set(const Table& table, const float* values, u8* row) {
    if (table.layout_.serving) return table.encode_row(values, row);
    std::memcpy(row, values, sizeof(float) * table.layout_.dim);
  }
};

}  // namespace hedgerow
