// The rows of a table and the index that finds them: 64 shards by hash, each behind a reader-writer
// lock, over one arena of rows.
//
// The other parts of a table (reader, writer, evictor, ...) share one store. Whoever changes a
// shard holds its locks, as `Shard` says. Calls that write share `table_lock`; calls that change
// the whole table hold it alone.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "arena.h"
#include "dense_ids.h"
#include "evict.h"
#include "layout.h"
#include "shard.h"

namespace hedgerow {

struct LoadStatistics {
  double load_factor;  // keys per slot of the index
  u64 longest_search;  // buckets that the worst search for an absent key visits
};

// Where a search looks: in the index, or in the arrays of dense ids before it.
enum class SearchIn { index, dense_ids_first };

class RowStore {
 public:
  using Shards = std::vector<std::unique_ptr<Shard>>;

  RowStore(const RowLayout& layout, Marks marks, std::shared_ptr<RowFile> rows_in,
           u64 initial_capacity, u64 slot_key);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  const Shards& shards() const { return shards_; }
  Shard& shard(int number) const { return *shards_[u64(number)]; }
  RwLock& table_lock() const { return table_lock_; }

  // What places keys in the index; see SlotHash. It changes under the locks of all shards.
  u64 slot_key() const { return slot_key_.load(); }
  SlotHash slot_hash() const { return SlotHash(slot_key()); }

  u64 size() const;
  LoadStatistics load() const;
  u64 dense_id_bytes() const { return dense_ids_.bytes(); }

  // Grows whenever a key comes or goes: row numbers found before hold as long as it does not.
  // Written under the lock of the shard that changes.
  u64 changes() const { return changes_.load(); }
  void count_change() { changes_.fetch_add(1); }

  // How many ids calls have searched for. Equal ids that stand together count once.
  u64 searched() const { return searched_.load(std::memory_order_relaxed); }
  void count_searched(u64 ids) const { searched_.fetch_add(ids, std::memory_order_relaxed); }

  // The newest time that a write gave.
  i64 newest_time() const { return newest_time_.load(); }
  void saw_time(i64 time);

  // ---- searches

  // Rows of distinct keys, at most kFindIds: rows[i] is the row of keys[i], or kNoRow. The caller
  // holds the locks of their shards.
  static constexpr u64 kFindIds = 2048;
  template <u64 kGroup>
  void find(const SlotHash& hash, const i64* keys, u64 n, SearchIn where, u32* rows) const;
  // Whether the arrays of dense ids have some of these keys, as the first of them show.
  bool dense_ids_serve(const i64* keys, u64 n) const { return dense_ids_.serves(keys, n); }
  // What a search by hand needs: the indexes of all shards, under their locks.
  const IndexView* views() const { return views_; }

  // ---- changes of one shard's keys

  // Room for `rows` keys in all. The caller holds the shard's `writing`. Readers stop for the swap
  // alone.
  void make_room(int shard, u64 rows);
  // The same where the caller holds both locks of the shard.
  void make_room_locked(Shard& shard, int number, u64 rows) {
    Index& index = shard.index;
    if (index.has_room(rows)) return;
    index = index.grown(rows);
    views_[number] = index.view();
  }
  // A key comes or goes. The caller holds both locks of the shard, and has made room.
  void insert_key(Shard& shard, int number, u64 key, u32 row) {
    shard.index.insert(key, shard.index.position(key), row);
    dense_ids_.insert(number, key, row);
    ++shard.version;
  }
  void erase_key(Shard& shard, int number, u64 key) {
    shard.index.erase(key, shard.index.position(key));
    dense_ids_.erase(number, key);
    ++shard.version;
  }

  // ---- changes of all rows. The caller holds `table_lock` alone.

  // Runs body() with all shards locked, so that no reader is in the table.
  template <class Body>
  void with_all_shards(const Body& body);
  // For use within `with_all_shards`, of both stores for `swap`.
  void clear();
  void place_by(u64 slot_key);  // while there are no keys
  void swap(RowStore& other);
  bool can_swap(const RowStore& other) const { return arena_.can_swap(other.arena_); }

  // ---- stamps, which lie beside rows; `Marks` says what they hold

  Marks marks() const { return marks_; }
  i64 stamp_of(u32 row) const { return shown(*arena_.time(row)); }
  // The time in a stamp that a write gave.
  i64 time_of(i64 stamp) const { return marks_ == Marks::none ? stamp : i64(seconds_of(stamp)); }
  // A row was written; `uses` of it were counted.
  HR_INLINE void stamp(u32 row, i64 given, bool born, u64 uses) const {
    i64& stamp = *arena_.time(row);
    if (marks_ == Marks::uses) [[unlikely]] {
      const u64 before = born ? 0 : mark_of(stamp);
      const u64 more = weight_times(mark_of(given), uses);
      stamp = uses ? stamp_with(given, weights_added(before, more)) | kUsedSince
                   : stamp_with(given, before) | (born ? 0 : stamp & kUsedSince);
    } else {
      stamp = given;
    }
  }

  // ---- prefetching

  HR_INLINE void fetch_row(u32 row) const {  // and its stamp
    fetch_bytes(arena_.row(row), row_bytes_);
    fetch_line(arena_.time(row));
  }
  // Calls use(entry) for entries in their order while the rows of later ones are on their way: an
  // index knows no order of rows, so each would be waited for.
  template <class Use>
  void each_fetched(std::span<const KeyRow> entries, const Use& use) const;

 private:
  const u64 row_bytes_;
  const Marks marks_;
  Arena arena_;
  Shards shards_;
  mutable RwLock table_lock_;
  alignas(64) IndexView views_[kShards];  // of the shards' indexes, under their locks
  std::atomic<u64> slot_key_;
  DenseIds dense_ids_;
  std::atomic<i64> newest_time_{0};
  alignas(64) std::atomic<u64> changes_{0};
  mutable std::atomic<u64> searched_{0};
};

template <class Body>
void RowStore::with_all_shards(const Body& body) {
  for (auto& shard : shards_) shard->lock.lock();
  count_change();
  body();
  for (int i = 0; i < kShards; ++i) {
    views_[i] = shard(i).index.view();
    ++shard(i).version;
  }
  for (auto& shard : shards_) shard->lock.unlock();
}

template <class Use>
void RowStore::each_fetched(std::span<const KeyRow> entries, const Use& use) const {
  constexpr u64 kFetchAhead = 16;
  for (u64 i = 0; i < entries.size() + kFetchAhead; ++i) {
    if (i < entries.size()) fetch_row(entries[i].row);
    if (i >= kFetchAhead) use(entries[i - kFetchAhead]);
  }
}

}  // namespace hedgerow
