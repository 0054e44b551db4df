// Growth, insertion, removal and scan of a shard's index.
#include "index.h"

#include <algorithm>
#include <cmath>

#include "shard_of.h"

namespace hedgerow {
namespace {

constexpr double kGrowth = 1.5;  // finer than doubling: 20 bytes a row on average instead of 23
constexpr double kSmallest = 4;  // buckets
constexpr u64 kHugeFrom = u64(2) << 20;  // bytes from which an index asks for huge pages

}  // namespace

// Sizes follow kSmallest * kGrowth^(k + phase).
u64 Index::buckets_for(u64 rows) const {
  const double wanted = double((rows + kMaxPerBucket - 1) / kMaxPerBucket);
  const double level = std::log(std::max(wanted, 1.0) / kSmallest) / std::log(kGrowth) - phase_;
  const double size = kSmallest * std::pow(kGrowth, std::max(0.0, std::ceil(level)) + phase_);
  return std::max(u64(wanted), u64(std::ceil(size)));
}

void Index::reserve(u64 rows) {
  if (rows <= count_ * kMaxPerBucket) return;
  const u64 count = buckets_for(rows);
  const u64 bytes = count * sizeof(Bucket);
  Index grown(phase_);
  grown.block_ = Block(bytes, bytes >= kHugeFrom ? PageSize::huge : PageSize::small);
  grown.charge_.add(bytes);
  grown.buckets_ = reinterpret_cast<Bucket*>(grown.block_.data());
  grown.count_ = count;
  for (u64 at = 0; at < count_; ++at) {
    const Bucket& bucket = buckets_[at];
    for (u32 i = 0; i < used(bucket); ++i)
      grown.insert(bucket.key[i], position_of(slot_hash(bucket.key[i])), bucket.row[i]);
  }
  *this = std::move(grown);
}

void Index::insert(u64 key, u64 position, u32 row) {
  u64 at = home(position);
  for (; used(buckets_[at]) == kSlots; at = next(at))
    if (passed(buckets_[at]) != kPassFull) buckets_[at].counts += kPass;
  Bucket& bucket = buckets_[at];
  const u32 slot = used(bucket);
  bucket.key[slot] = key;
  bucket.row[slot] = row;
  ++bucket.counts;
  ++size_;
}

u32 Index::erase(u64 key, u64 position) {
  if (count_ == 0) return kNoRow;
  const u64 start = home(position);
  u64 at = start;
  u32 hit;
  while ((hit = match(buckets_[at], key)) == 0) {
    if (passed(buckets_[at]) == 0) return kNoRow;
    at = next(at);
    if (at == start) return kNoRow;
  }
  Bucket& bucket = buckets_[at];
  const u32 slot = __builtin_ctz(hit), last = used(bucket) - 1;
  const u32 row = bucket.row[slot];
  bucket.key[slot] = bucket.key[last];
  bucket.row[slot] = bucket.row[last];
  --bucket.counts;
  --size_;
  for (u64 before = start; before != at; before = next(before))
    if (passed(buckets_[before]) != kPassFull) buckets_[before].counts -= kPass;
  return row;
}

u64 Index::first_position_of(u64 bucket) const {
  return u64(((u128(bucket) << 64) + count_ - 1) / count_);
}

void Index::gather(u64 bucket, u64 from, std::vector<KeyRow>& out) const {
  u64 at = bucket;
  do {
    const Bucket& here = buckets_[at];
    for (u32 i = 0; i < used(here); ++i) {
      const u64 position = position_of(slot_hash(here.key[i]));
      if (position >= from && home(position) == bucket) out.push_back({here.key[i], here.row[i]});
    }
    if (passed(here) == 0) return;
    at = next(at);
  } while (at != bucket);
}

u64 Index::scan(u64 from, u64 limit, std::vector<KeyRow>& out, bool& done) const {
  done = false;
  if (count_ != 0) {
    for (u64 bucket = home(from); bucket < count_; ++bucket) {
      const u64 before = out.size();
      gather(bucket, from, out);
      if (out.size() > limit && before != 0) {
        out.resize(before);
        return from;
      }
      if (bucket + 1 == count_) break;
      from = first_position_of(bucket + 1);
      if (out.size() >= limit) return from;
    }
  }
  done = true;
  return 0;
}

u64 Index::longest_search() const {
  u64 longest = 0, run = 0;
  // A run that reaches the end goes on from the start: walk twice round at most.
  for (u64 step = 0; step < 2 * count_; ++step) {
    longest = std::max(longest, ++run);
    if (passed(buckets_[step % count_]) != 0) continue;
    run = 0;
    if (step >= count_) break;
  }
  return std::min(longest, count_);
}

void Index::clear() {
  charge_.release();
  block_.reset();
  buckets_ = nullptr;
  count_ = 0;
  size_ = 0;
}

}  // namespace hedgerow
