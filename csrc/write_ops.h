// What all writing verbs share: small batches of ids on their way through a shard, and the values
// and stamps of their rows.
//
// An op decides for every id of a batch whether its row is needed (`prepare`), says how a row is
// born (`born`) and changes the rows (`change`). It is shared by all threads of a call; what a
// thread needs for itself is in its Worker. `kInserts`: it may bring new keys. `kLearns`: what it
// writes counts as touched for every consumer of touched keys, not only for those of all changes.
// `earliest`, of those that insert: the smallest stamp that it gives. `kMoves`, where it is
// declared: the rows go to or come from another store of the same table, so they are not tracked as
// touched and not counted.
#pragma once

#include <span>

#include "row_writer.h"

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

// What an op needs to know of the table's rows.
struct RowAccess {
  const RowValues& values;
  const RowStore& store;

  u64 dim() const { return values.dim(); }
  // Row `i` of a batch was written with this stamp, which counts as so many uses of the row.
  void stamp(const Batch& batch, u64 i, i64 given, u64 uses) const {
    store.stamp(batch.groups[i].row, given, batch.born[i], uses);
  }
  // The stamp as it is, whatever it holds.
  void set_stamp(const Group& group, i64 stamp) const { *store.arena().time(group.row) = stamp; }
};

}  // namespace hedgerow
