// Growth, insertion, removal and scan of a shard's index.
#include "index.h"

#include <algorithm>
#include <cmath>

namespace hedgerow {
namespace {

constexpr double kGrowth = 1.5;  // finer than doubling: 20 bytes a row on average instead of 23
constexpr double kSmallest = 4;  // buckets
constexpr u64 kHugeFrom = u64(64) << 10;  // bytes: 64 smaller ones fit the translation caches

}  // namespace

const Bucket Index::kEmpty{};

// Sizes follow kSmallest * kGrowth^(k + phase).
u64 Index::buckets_for(u64 rows) const {
  const double wanted = double((rows + kMaxPerBucket - 1) / kMaxPerBucket);
  const double level = std::log(std::max(wanted, 1.0) / kSmallest) / std::log(kGrowth) - phase_;
  const double size = kSmallest * std::pow(kGrowth, std::max(0.0, std::ceil(level)) + phase_);
  return std::max(u64(wanted), u64(std::ceil(size)));
}

Index Index::grown(u64 rows) const {
  const u64 count = buckets_for(rows);
  const u64 bytes = count * sizeof(Bucket);
  Index larger(phase_, hash_);
  larger.block_ = Block(bytes, bytes >= kHugeFrom ? PageSize::huge : PageSize::small);
  larger.charge_.add(bytes);
  larger.buckets_ = reinterpret_cast<Bucket*>(larger.block_.data());
  larger.count_ = count;
  for (u64 at = 0; at < count_; ++at) {
    const Bucket& bucket = buckets_[at];
    for (u32 i = 0; i < bucket.used(); ++i)
      larger.insert(bucket.key[i], position(bucket.key[i]), bucket.row[i]);
  }
  return larger;
}

void Index::insert(u64 key, u64 position, u32 row) {
  u64 at = home(position);
  for (; buckets_[at].used() == Bucket::kSlots; at = next(at))
    if (buckets_[at].passed() != Bucket::kPassFull) buckets_[at].counts += Bucket::kPass;
  Bucket& bucket = buckets_[at];
  const u32 slot = bucket.used();
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
  while ((hit = buckets_[at].match(key)) == 0) {
    if (buckets_[at].passed() == 0) return kNoRow;
    at = next(at);
    if (at == start) return kNoRow;
  }
  Bucket& bucket = buckets_[at];
  const u32 slot = __builtin_ctz(hit), last = bucket.used() - 1;
  const u32 row = bucket.row[slot];
  bucket.key[slot] = bucket.key[last];
  bucket.row[slot] = bucket.row[last];
  --bucket.counts;
  --size_;
  for (u64 before = start; before != at; before = next(before))
    if (buckets_[before].passed() != Bucket::kPassFull) buckets_[before].counts -= Bucket::kPass;
  return row;
}

u64 Index::first_position_of(u64 bucket) const {
  return u64(((u128(bucket) << 64) + count_ - 1) / count_);
}

void Index::gather(u64 bucket, u64 from, std::vector<KeyRow>& out) const {
  u64 at = bucket;
  do {
    const Bucket& here = buckets_[at];
    for (u32 i = 0; i < here.used(); ++i) {
      const u64 at_position = position(here.key[i]);
      if (at_position >= from && home(at_position) == bucket)
        out.push_back({here.key[i], here.row[i]});
    }
    if (here.passed() == 0) return;
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
    if (buckets_[step % count_].passed() != 0) continue;
    run = 0;
    if (step >= count_) break;
  }
  return std::min(longest, count_);
}

void Index::clear() {
  charge_.release();
  block_.reset();
  buckets_ = const_cast<Bucket*>(&kEmpty);
  count_ = 0;
  size_ = 0;
}

}  // namespace hedgerow
