// The keys of a table that changed since they were last asked for, kept for one who asks.
//
// One set a shard, guarded by that shard's `writing`, which whoever changes rows holds anyway. More
// keys than the capacity are not kept: the answer is then "any key may have changed".
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "shard_of.h"
#include "slot_hash.h"

namespace hedgerow {

// A set of 64-bit keys, any of them, in open addressing.
class KeySet {
 public:
  // False: it was there. Throws std::bad_alloc; nothing has changed then.
  bool insert(u64 key, const SlotHash& hash);
  u64 size() const { return size_; }
  u64 bytes() const { return slots_.capacity() * sizeof(u64); }
  void copy_to(i64* out) const;
  void clear() { *this = KeySet(); }

 private:
  void grow(const SlotHash& hash);
  // False: it was there.
  static bool place(std::vector<u64>& slots, u64 key, const SlotHash& hash);

  std::vector<u64> slots_;  // 0 is a free one: the key 0 stands in `zero_`
  bool zero_ = false;
  u64 size_ = 0;
};

struct TouchedStep {
  u64 keys;       // written
  int shard;      // to go on from
  bool whole;     // any key of the table may have changed
  u64 forgotten;  // keys dropped by an overflow of a consumer that forgets
  u64 needed;     // not 0: the room was too small for the next shard, which needs this much
};

class Touched {
 public:
  // `all_changes`: not learning alone, but every write and erasure. `forget` is Monolith's rule
  // on overflow: everything collected so far is dropped and counted.
  Touched(u64 capacity, bool all_changes, bool forget, const SlotHash& hash)
      : capacity_(capacity), all_changes_(all_changes), forget_(forget), hash_(hash) {}

  bool all_changes() const { return all_changes_; }
  // Keys to be taken; those of a full one are not.
  u64 size() const { return full_ ? 0 : size_.load(std::memory_order_relaxed); }
  u64 overflows() const { return overflows_.load(std::memory_order_relaxed); }

  // The caller holds the shard's `writing` for these. What is taken is taken off.
  u64 bytes(int shard);
  void mark(int shard, u64 key) noexcept;
  void take(u64 room, i64* ids, TouchedStep& step);

  // Keys are those of other shards from now on. The caller has every shard locked.
  void place_by(const SlotHash& hash) noexcept;

  // Any key may have changed; said after it has.
  void mark_all() { full_.store(true); }
  bool take_all() { return full_.exchange(false); }

 private:
  struct alignas(64) Stripe {
    KeySet keys;
    bool skipped = false;  // a key was not kept since the last take
  };
  void mark_or_forget(u64 key) noexcept;
  void forget_all();
  void overflow(Stripe& stripe);
  void skip(Stripe& stripe);

  const u64 capacity_;
  const bool all_changes_, forget_;
  SlotHash hash_;
  Stripe stripes_[kShards];  // a consumer that forgets uses the first alone, under `forgetting_`
  std::atomic<u64> size_{0};
  std::atomic<bool> full_{false};
  std::atomic<u64> overflows_{0};
  std::mutex forgetting_;
  u64 forgotten_ = 0;
};

}  // namespace hedgerow
