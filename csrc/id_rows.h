// Which row of several lists of rows belongs to an id: the lists' ids, numbered through.
#pragma once

#include <span>

#include "id_map.h"

namespace hedgerow {

struct IdList {
  const u64* ids;
  u64 n;
};

// An id that is listed twice has its first number.
//
// Ids that fill their range are placed by subtraction; others are hashed. A batch that was cut by
// shard, a vocabulary or rows numbered by a dedup are of the first kind, whatever their order.
class IdRows {
 public:
  explicit IdRows(std::span<const IdList> lists);  // fewer than 2^31 ids

  // out[i] = the number of queries[i]. The place of the first query that is not listed, or n.
  u64 find(const u64* queries, u64 n, i64* out) const;

 private:
  // As much memory as the map would take at least: it has 16 bytes a slot, two slots an id.
  static constexpr u64 kPlacesPerId = 8;

  void place(std::span<const IdList> lists, u64 ids);
  void hash(std::span<const IdList> lists, u64 ids);

  u64 least_ = 0;
  Scratch<u32> direct_;  // by id - least_; empty: the map has them
  IdMap map_;
};

}  // namespace hedgerow
