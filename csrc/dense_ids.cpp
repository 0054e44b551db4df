// Makes arrays where ids are dense, drops them where they no longer are.
#include "dense_ids.h"

#include <algorithm>
#include <new>
#include <utility>

#include "bucket.h"

namespace hedgerow {
namespace {

constexpr int kBits = 16;
constexpr u64 kIds = u64(1) << kBits;  // of a range
constexpr u64 kRanges = u64(1) << 14;  // ids up to 2^30 - 1
constexpr u64 kArrayBytes = kIds * sizeof(u32);
constexpr int kSample = 16;                 // keys of every 16th shard are counted: a random sample
constexpr u32 kDense = kIds / kSample / 2;  // an array costs 8 bytes a row at most when it is made
constexpr u32 kSparse = kDense / 4;         // and is dropped at 32
// 16 MiB: less than two bytes a row of a table of ten million rows, which may take 30 beyond its
// payload. Ids of further ranges are found in the index.
constexpr u64 kMostArrays = 64;

constexpr u64 kFirstKeys = 16;  // of a search, which show where the others may be

}  // namespace

DenseIds::DenseIds()
    : directory_(kRanges * sizeof(Range), PageSize::small),
      ranges_(reinterpret_cast<Range*>(directory_.data())) {}

bool DenseIds::serves(const i64* keys, u64 n) const {
  if (arrays_.load(std::memory_order_relaxed) == 0) return false;
  return std::any_of(keys, keys + std::min(n, kFirstKeys), [&](i64 key) {
    const u64 range = u64(key) >> kBits;
    return range < kRanges && ranges_[range].rows.load(std::memory_order_relaxed) != nullptr;
  });
}

u64 DenseIds::find(const i64* keys, u64 n, u32* rows, u32* left) const {
  u64 others = 0;
  for (u64 i = 0; i < n; ++i) {
    const u64 key = u64(keys[i]), range = key >> kBits;
    u32 entry = 0;
    if (range < kRanges) {
      const Entry* const array = ranges_[range].rows.load(std::memory_order_acquire);
      if (array != nullptr) entry = array[key % kIds].load(std::memory_order_relaxed);
    }
    rows[i] = entry - 1;
    left[others] = u32(i);
    others += entry == 0;
  }
  return others;
}
static_assert(u32(0) - 1 == kNoRow);

void DenseIds::learn(u64 key, u32 row) const {
  if (key >> kBits >= kRanges) return;
  Entry* const array = ranges_[key >> kBits].rows.load(std::memory_order_acquire);
  if (array != nullptr) array[key % kIds].store(row + 1, std::memory_order_relaxed);
}

void DenseIds::insert(int shard, u64 key, u32 row) {
  const u64 range = key >> kBits;
  if (range >= kRanges) return;
  if (shard % kSample == 0 &&
      ranges_[range].sampled.fetch_add(1, std::memory_order_relaxed) + 1 == kDense)
    make_array(range);
  learn(key, row);
}

// Also where the range has no array any more: what was said there must not come back with the next.
void DenseIds::erase(int shard, u64 key) {
  const u64 range = key >> kBits;
  if (range >= kRanges) return;
  Entry* const array = ranges_[range].memory.load(std::memory_order_acquire);
  if (array != nullptr && array[key % kIds].load(std::memory_order_relaxed) != 0)
    array[key % kIds].store(0, std::memory_order_relaxed);
  if (shard % kSample != 0) return;
  if (ranges_[range].sampled.fetch_sub(1, std::memory_order_relaxed) - 1 == kSparse)
    drop_array(range);
}

void DenseIds::make_array(u64 range) {
  const std::lock_guard hold(mutex_);
  Range& at = ranges_[range];
  if (at.rows.load(std::memory_order_relaxed) != nullptr) return;
  // Those that were dropped have no pages: where ids wander, the ranges they left do not count.
  if (arrays_.load(std::memory_order_relaxed) >= kMostArrays) return;
  try {
    Block& block = blocks_[range];
    if (block.data() == nullptr) block = Block(kArrayBytes, PageSize::small);
    charge_.add(kArrayBytes);
    at.memory.store(reinterpret_cast<Entry*>(block.data()), std::memory_order_release);
    at.rows.store(reinterpret_cast<Entry*>(block.data()), std::memory_order_release);
    arrays_.fetch_add(1, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    // The index knows all keys: without an array they are found there.
  }
}

// The memory stays mapped, since readers may look at it, but without pages; entries are empty then,
// which is never wrong.
void DenseIds::drop_array(u64 range) {
  const std::lock_guard hold(mutex_);
  Entry* const array = ranges_[range].rows.exchange(nullptr, std::memory_order_relaxed);
  if (array == nullptr) return;
  arrays_.fetch_sub(1, std::memory_order_relaxed);
  charge_.subtract(kArrayBytes);
  return_pages(array, kArrayBytes);
}

u64 DenseIds::bytes() const {
  const std::lock_guard hold(mutex_);
  return charge_.bytes();
}

void DenseIds::clear() {
  const std::lock_guard hold(mutex_);
  for (u64 range = 0; range < kRanges; ++range) {
    Range& at = ranges_[range];
    if (at.sampled.load() == 0 && at.memory.load() == nullptr)
      continue;  // its page stays untouched
    at.rows.store(nullptr);
    at.memory.store(nullptr);
    at.sampled.store(0);
  }
  blocks_.clear();
  charge_.release();
  arrays_.store(0);
}

void DenseIds::swap(DenseIds& other) {
  const std::scoped_lock hold(mutex_, other.mutex_);
  std::swap(directory_, other.directory_);
  std::swap(ranges_, other.ranges_);
  std::swap(blocks_, other.blocks_);
  std::swap(charge_, other.charge_);
  arrays_.store(other.arrays_.exchange(arrays_.load()));
}

}  // namespace hedgerow
