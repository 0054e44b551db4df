// Sets of touched keys: insertion, overflow, taking.
#include "touched.h"

#include <algorithm>
#include <new>

namespace hedgerow {
namespace {

constexpr u64 kLeastSlots = 16;

}  // namespace

bool KeySet::place(std::vector<u64>& slots, u64 key, const SlotHash& hash) {
  const u64 mask = slots.size() - 1;
  u64 at = hash(key) & mask;  // low bits: the shard took the high ones
  for (; slots[at] != 0; at = (at + 1) & mask)
    if (slots[at] == key) return false;
  slots[at] = key;
  return true;
}

void KeySet::grow(const SlotHash& hash) {
  std::vector<u64> larger(std::max(kLeastSlots, slots_.size() * 2));
  for (u64 key : slots_)
    if (key != 0) place(larger, key, hash);
  slots_.swap(larger);
}

bool KeySet::insert(u64 key, const SlotHash& hash) {
  if (key == 0) {
    if (zero_) return false;
    zero_ = true;
  } else {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow(hash);
    if (!place(slots_, key, hash)) return false;
  }
  ++size_;
  return true;
}

// Without a branch at each slot: which are free is as good as random, and half of them are. A free
// one's 0 is overwritten by the next key, of which there is one as long as the loop goes on.
void KeySet::copy_to(i64* out) const {
  if (zero_) *out++ = 0;
  const i64* const end = out + (size_ - u64(zero_));
  for (const u64* slot = slots_.data(); out != end; ++slot) {
    *out = i64(*slot);
    out += *slot != 0;
  }
}

u64 Touched::bytes(int shard) {
  if (!drops()) return stripes_[shard].keys.bytes();
  const std::lock_guard hold(dropping_);
  return stripes_[shard].keys.bytes();
}

// A key is in its shard's set, or the shard says that it skipped one, and both change under the
// shard's lock alone: so no take misses a change, however `full_` is seen by other shards.
void Touched::skip(Stripe& stripe) {
  size_.fetch_sub(stripe.keys.size(), std::memory_order_relaxed);
  stripe.keys.clear();
  stripe.skipped = true;
}

void Touched::overflow(Stripe& stripe) {
  if (!full_.exchange(true)) overflows_.fetch_add(1, std::memory_order_relaxed);
  skip(stripe);
}

void Touched::mark(int shard, u64 key) noexcept {
  if (drops()) return mark_or_drop(key);
  Stripe& stripe = stripes_[shard];
  if (full_.load(std::memory_order_relaxed)) return skip(stripe);
  try {
    if (!stripe.keys.insert(key, hash_)) return;
  } catch (const std::bad_alloc&) {  // the write goes on; the consumer learns that keys are missing
    return overflow(stripe);
  }
  if (size_.fetch_add(1, std::memory_order_relaxed) >= capacity_) overflow(stripe);
}

void Touched::drop_all() {
  dropped_ += stripes_[0].keys.size();
  stripes_[0].keys.clear();
  size_.store(0, std::memory_order_relaxed);
  overflows_.fetch_add(1, std::memory_order_relaxed);
}

void Touched::mark_or_drop(u64 key) noexcept {
  const std::lock_guard hold(dropping_);
  // Before the key is looked at, so that one more than the capacity stays until the next comes.
  if (stripes_[0].keys.size() > capacity_) drop_all();
  try {
    if (!stripes_[0].keys.insert(key, hash_)) return;
  } catch (const std::bad_alloc&) {
    drop_all();
    ++dropped_;
    return;
  }
  size_.store(stripes_[0].keys.size(), std::memory_order_relaxed);
}

// A key in the set of a shard that is no longer its own would be kept a second time when it changes
// again, and be taken twice.
void Touched::place_by(const SlotHash& hash) noexcept {
  const std::lock_guard hold(dropping_);
  hash_ = hash;
  u64 total = 0;
  for (const Stripe& stripe : stripes_) total += stripe.keys.size();
  try {
    std::vector<i64> keys(total);
    i64* end = keys.data();
    for (Stripe& stripe : stripes_) {
      stripe.keys.copy_to(end);
      end += stripe.keys.size();
      stripe.keys.clear();
    }
    for (i64 key : keys)
      stripes_[drops() ? 0 : shard_of(hash(u64(key)))].keys.insert(u64(key), hash);
  } catch (const std::bad_alloc&) {  // the consumer learns that keys are missing
    for (Stripe& stripe : stripes_) stripe.keys.clear();
    size_.store(0, std::memory_order_relaxed);
    overflows_.fetch_add(1, std::memory_order_relaxed);
    if (drops()) {
      dropped_ += total;
    } else {
      full_.store(true);
    }
  }
}

void Touched::take(u64 room, i64* ids, TouchedStep& step) {
  if (drops() && step.shard != 0) {
    ++step.shard;
    return;
  }
  std::unique_lock hold(dropping_, std::defer_lock);
  if (drops()) hold.lock();
  Stripe& stripe = stripes_[step.shard];
  const u64 keys = stripe.keys.size();
  step.whole = step.whole || stripe.skipped;
  if (!step.whole && keys > room - step.keys) {
    step.needed = keys;
    return;
  }
  if (!step.whole) {
    stripe.keys.copy_to(ids + step.keys);
    step.keys += keys;
  }
  stripe.keys.clear();
  size_.fetch_sub(keys, std::memory_order_relaxed);
  stripe.skipped = false;
  step.dropped += dropped_;
  dropped_ = 0;
  ++step.shard;
}

}  // namespace hedgerow
