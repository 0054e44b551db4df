// The sliding occurrence filter: how often an id was seen among about the last `capacity` ids.
//
// `parts` arrays in a ring, each for capacity / (parts - 1) ids. Counts live in the head array; an
// id found in an older one takes its count along to the head. When the head is full the next array
// becomes the head, and the one after it, the oldest, is cleared. So the array after the head is
// always empty. One mutex, taken once for a whole batch.
#pragma once

#include <mutex>
#include <vector>

#include "count_array.h"
#include "slot_hash.h"

namespace hedgerow {

class SlidingFilter {
 public:
  struct Settings {
    u64 capacity, parts, seed;
    u32 max_count;  // where counts stop, at most 255
    bool operator==(const Settings&) const = default;
  };
  struct State {
    u64 key, head, head_increment, failures;
    std::vector<CountArray::Shape> arrays;
    u64 bytes() const;
  };

  // `key` says where ids are counted, see SlotHash; 0: as filters without one did. Throws
  // std::invalid_argument.
  explicit SlidingFilter(const Settings& settings, u64 key = 0);
  ~SlidingFilter();

  const Settings& settings() const { return settings_; }
  u64 part_capacity() const { return settings_.capacity / (settings_.parts - 1); }

  // Counts ids of a table, in order, and gives the counts before. Without `counts`, one each.
  void add_many(u64 table, const i64* ids, const i64* counts, u64 n, u8* before);
  // The counts of ids of a table.
  void count_many(u64 table, const i64* ids, u64 n, u8* out) const;
  u64 bytes() const;
  // The state; its arrays are written one after the other if they fit into `room` bytes.
  State dump(u64 room, u8* out) const;
  // Throws std::invalid_argument, unchanged.
  void restore(const State& state, const u8* from, u64 bytes);

  // The lock, for whoever asks about many ids of one table. The caller's call holds a CallScope.
  class Hold {
   public:
    Hold(SlidingFilter& filter, u64 table);
    void fetch(u64 id) const;
    u8 add(u64 id, u64 n);  // the count before

   private:
    SlidingFilter& filter_;
    const std::lock_guard<std::mutex> lock_;
    const SlotHash hash_;
  };

 private:
  u8 add(u64 hash, u64 n);
  u8 older_count(u64 hash) const;
  void advance();
  CountArray& behind(u64 arrays) {
    return arrays_[(head_ + settings_.parts - arrays) % settings_.parts];
  }
  u64 older_arrays() const;
  SlotHash hash_of(u64 table) const;

  const Settings settings_;
  mutable std::mutex mutex_;
  std::vector<CountArray> arrays_;
  u64 key_, head_ = 0, head_increment_ = 0, failures_ = 0;
};

}  // namespace hedgerow
