// The keys of a table that changed since one consumer last took them.
//
// One set per shard, guarded by that shard's `writing`, which whoever changes rows holds anyway.
// More keys than the capacity are not kept: the answer is then "any key may have changed".
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
  u64 keys;     // written
  int shard;    // to go on from
  bool whole;   // any key of the table may have changed
  u64 dropped;  // keys that overflows of a consumer with `drop_all` dropped
  u64 needed;   // not 0: the room was too small for the next shard, which needs this much
};

// Which changes a consumer sees: what training changes (gradients and reinitialisations), or every
// write and erasure.
enum class Watched { training, every_change };

// What happens to a consumer's keys when more than its capacity are waiting. `report_all`: the next
// take says that any key may have changed. `drop_all`, the rule of Monolith: all keys collected so
// far are dropped and counted.
enum class OnOverflow { report_all, drop_all };

class Touched {
 public:
  Touched(u64 capacity, Watched watched, OnOverflow on_overflow, const SlotHash& hash)
      : capacity_(capacity), watched_(watched), on_overflow_(on_overflow), hash_(hash) {}

  bool sees(Watched change) const { return change == Watched::training || sees_every_change(); }
  bool sees_every_change() const { return watched_ == Watched::every_change; }
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
  bool drops() const { return on_overflow_ == OnOverflow::drop_all; }
  void mark_or_drop(u64 key) noexcept;
  void drop_all();
  void overflow(Stripe& stripe);
  void skip(Stripe& stripe);

  const u64 capacity_;
  const Watched watched_;
  const OnOverflow on_overflow_;
  SlotHash hash_;
  Stripe stripes_[kShards];  // a consumer that drops uses the first alone, under `dropping_`
  std::atomic<u64> size_{0};
  std::atomic<bool> full_{false};
  std::atomic<u64> overflows_{0};
  std::mutex dropping_;
  u64 dropped_ = 0;
};

}  // namespace hedgerow
