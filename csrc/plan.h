// What a writing call will touch: its ids split by shard, equal ids grouped, occurrences in input
// order.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "buffer.h"
#include "shard_of.h"
#include "slot_hash.h"

namespace hedgerow {

struct Group {
  u64 key;
  u32 first;  // its occurrences: Plan::occurrences(group)
  u32 count;
  u32 row;    // where the key was found, or kNoRow
  u32 spare;  // for a key that was not found: the row it will get
};

class Plan {
 public:
  static constexpr u64 kMaxIds = 0xfffffffeull;  // positions are 32-bit

  // Splits the ids by shard, in input order. Work is shared with the pool; the result does not
  // depend on it.
  void split(const SlotHash& hash, const i64* ids, u64 n, u64 tile_ids);

  // Groups the equal ids of one shard, in the order in which they first occur.
  void group(int shard);

  // Does the work of `split` and of `group` for every shard where the caller knows the row of each
  // id: equal rows are equal ids, so only the distinct ids are hashed. The groups and their order
  // are the same, and each group has its row. Returns false, and has done nothing, if an id has no
  // row or the call is large enough to share the work with the pool.
  bool group_known(const SlotHash& hash, const i64* ids, u64 n, u64 tile_ids, const u32* rows);

  // Whether `group_known` made the groups.
  bool has_rows() const { return has_rows_; }

  u64 ids() const { return ids_; }

  std::span<Group> groups(int shard) {
    return {groups_.data() + starts_[shard], group_count_[shard]};
  }

  // A tile is a run of `tile_ids` ids of the batch. Groups belong to the tile of their first
  // occurrence: those of one tile read values that lie side by side.
  u64 tiles() const { return tiles_; }
  u64 tile_ids() const { return tile_ids_; }
  std::span<Group> groups(int shard, u64 tile) {
    const u32* from = tile_from_.data() + u64(shard) * (tiles_ + 1) + tile;
    return groups(shard).subspan(from[0], from[1] - from[0]);
  }

  // Asks for the groups of a tile and their occurrences, soon to be read.
  void fetch(int shard, u64 tile) {
    const std::span<const Group> soon = groups(shard, tile);
    if (soon.empty()) return;
    fetch_bytes(soon.data(), soon.size_bytes());
    fetch_bytes(order_.data() + soon.front().first, sizeof(u32) * soon.size());
  }

  // Removes groups of a shard; the others keep their order and their tiles.
  template <class Gone>
  void remove_groups(int shard, Gone&& gone) {
    u32* const from = tile_from_.data() + u64(shard) * (tiles_ + 1);
    Group* const groups = groups_.data() + starts_[shard];
    u32 kept = 0, read = 0;
    for (u64 tile = 0; tile < tiles_; ++tile) {
      const u32 end = from[tile + 1];
      from[tile] = kept;
      for (; read < end; ++read)
        if (!gone(groups[read])) groups[kept++] = groups[read];
    }
    from[tiles_] = group_count_[shard] = kept;
  }

  std::span<const u32> occurrences(const Group& group) const {
    return {order_.data() + group.first, group.count};
  }

  // Numbers groups in the order in which they first occur in the batch: marks are set by any
  // thread, each for its own groups, then `rank` makes the numbers.
  void start_ranks();
  void mark(const Group& group) { marks_.data()[order_.data()[group.first]] = 1; }
  u32 rank();                                                               // how many were marked
  u8* flags(u64 n) { return std::fill_n(marks_.ensure(n), n, u8(0)) - n; }  // n zeros, n <= ids
  u32 rank_of(const Group& group) const { return ranks_.data()[order_.data()[group.first]]; }

  // Per shard, for the caller: the version at which rows were found, whether another call was there
  // since (then no row found may be trusted), keys that were not found, and those of them that the
  // index holds room for.
  u64 version[kShards];
  bool stale[kShards];
  u64 absent[kShards];
  u64 promised[kShards];

  // Rows that nobody had before this call, taken for its new keys.
  struct {
    u32 first, rows;
  } fresh = {};
  bool any_absent() const { return std::any_of(absent, absent + kShards, std::identity()); }

  void trim();    // lets go of the memory of an unusually large call
  void let_go();  // all of its memory

  static Plan& of_this_thread();

 private:
  void keep_at_most(u64 bytes);
  // A run of equal ids that stand side by side in the batch.
  struct Run {
    static constexpr u32 kLongest = 31;
    u64 key;
    u32 position;    // of the first
    u32 length : 5;  // a longer run is several
    u32 hash : 27;   // low bits of the slot hash: the shard took the high ones
  };

  // A distinct id of `group_known`.
  struct KnownGroup {
    u64 key;
    u32 row, count, position, shard;  // position: of its first occurrence
  };
  static u32 find_known(const i64* ids, u64 n, const u32* rows, u32 most, KnownGroup* found,
                        u32* member_of);

  // The runs of one task, sorted by shard: where each shard's start in `runs_`, and their ids.
  struct Part {
    u32 from[kShards + 1];
    u32 ids[kShards];
  };
  void split_task(const SlotHash& hash, const i64* ids, u64 from, u64 count, Part& part);
  std::span<const Run> runs_of(u64 task, int shard) const {
    const u32* from = parts_.data()[task].from + shard;
    return {runs_.data() + from[0], runs_.data() + from[1]};
  }
  void start(u64 n, u64 tile_ids);
  u32 find_groups(int shard, u32* member_of, u32* table, u64 mask);
  void place_groups(std::span<const KnownGroup> found, u32* placed);

  u64 starts_[kShards + 1];
  u32 group_count_[kShards];
  Buffer<Run> runs_;
  Buffer<Group> groups_;
  Buffer<u32> order_;
  u64 ids_ = 0, tile_ids_ = 1, tiles_ = 0, tasks_ = 0;
  bool has_rows_ = false;
  Buffer<Part> parts_;
  Buffer<u32> tile_from_;  // per shard and tile: its first group
  Buffer<u8> marks_;
  Buffer<u32> ranks_;
};

}  // namespace hedgerow
