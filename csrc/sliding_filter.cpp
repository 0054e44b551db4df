// Counting, advancing, and state out and in.
#include "sliding_filter.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 4;         // ids whose cells are fetched ahead
constexpr u64 kFetchedParts = 4;  // youngest arrays that are fetched: most ids are in them

u64 fold(u64 a, u64 b) {
  const u128 product = u128(a) * b;
  return u64(product) ^ u64(product >> 64);
}

u64 salt_of(u64 seed, u64 table) {
  return fold(fold(seed ^ 0x8bb84b93962eacc9ull, 0x2d358dccaa6c78a5ull) ^ table,
              0x9e3779b97f4a7c15ull);
}

}  // namespace

u64 SlidingFilter::State::bytes() const {
  u64 total = 0;
  for (const CountArray::Shape& shape : arrays) total += shape.bytes();
  return total;
}

SlidingFilter::SlidingFilter(const Settings& settings, u64 key) : settings_(settings), key_(key) {
  if (settings.capacity < 300 || settings.capacity > (u64(1) << 40) || settings.parts < 5 ||
      settings.parts > settings.capacity / 2 + 1 || settings.max_count < 1 ||
      settings.max_count > 255)
    throw std::invalid_argument(
        "a filter of capacity " + std::to_string(settings.capacity) + " in " +
        std::to_string(settings.parts) + " parts with counts to " +
        std::to_string(settings.max_count) +
        "; it needs a capacity of 300..2^40, 5 parts or more of 2 ids or more, counts to 1..255");
  arrays_.reserve(settings.parts);
  for (u64 i = 0; i < settings.parts; ++i) arrays_.emplace_back(part_capacity());
}

SlidingFilter::~SlidingFilter() {
  const CallScope scope;  // memory is returned under a lock that a fork must not split
  arrays_.clear();
}

SlotHash SlidingFilter::hash_of(u64 table) const {
  return {{salt_of(settings_.seed, table), 0xd1342543de82ef95ull, 0x4b33a62ed433d4a3ull,
           0xaf251af3b0f025b5ull},
          key_};
}

u64 SlidingFilter::older_arrays() const { return std::min(head_increment_, settings_.parts - 2); }

u8 SlidingFilter::older_count(u64 hash) const {
  for (u64 back = 1; back <= older_arrays(); ++back) {
    const u64 at = (head_ + settings_.parts - back) % settings_.parts;
    if (const u8 count = arrays_[at].count(hash); count != 0) return count;
  }
  return 0;
}

void SlidingFilter::advance() {
  head_ = (head_ + 1) % settings_.parts;
  ++head_increment_;
  arrays_[(head_ + 1) % settings_.parts].clear();
}

u8 SlidingFilter::add(u64 hash, u64 n) {
  const u64 most = settings_.max_count;
  const auto sum = [&](u8 before) { return u8(std::min(most, before + std::min(n, most))); };
  CountArray& head = arrays_[head_];
  if (const u8 before = head.count(hash); before != 0) {
    head.set(hash, sum(before));
    return before;
  }
  const u8 before = older_count(hash);
  if (!head.insert(hash, sum(before), failures_)) return u8(most);
  if (head.size() + 1 >= part_capacity()) advance();
  return before;
}

SlidingFilter::Hold::Hold(SlidingFilter& filter, u64 table)
    : filter_(filter), lock_(filter.mutex_), hash_(filter.hash_of(table)) {}

void SlidingFilter::Hold::fetch(u64 id) const {
  const u64 at = hash_(id);
  for (u64 back = 0; back <= std::min(filter_.older_arrays(), kFetchedParts - 1); ++back)
    filter_.behind(back).fetch(at);
}

u8 SlidingFilter::Hold::add(u64 id, u64 n) { return filter_.add(hash_(id), n); }

void SlidingFilter::add_many(u64 table, const i64* ids, const i64* counts, u64 n, u8* before) {
  const CallScope scope;
  Hold hold(*this, table);
  for (u64 i = 0; i < n; ++i) {
    if (i + kAhead < n) hold.fetch(u64(ids[i + kAhead]));
    before[i] = hold.add(u64(ids[i]), counts == nullptr ? 1 : u64(counts[i]));
  }
}

void SlidingFilter::count_many(u64 table, const i64* ids, u64 n, u8* out) const {
  const CallScope scope;
  const std::lock_guard lock(mutex_);
  const SlotHash hash_id = hash_of(table);
  for (u64 i = 0; i < n; ++i) {
    const u64 hash = hash_id(u64(ids[i]));
    const u8 count = arrays_[head_].count(hash);
    out[i] = count != 0 ? count : older_count(hash);
  }
}

u64 SlidingFilter::bytes() const {
  const CallScope scope;
  const std::lock_guard lock(mutex_);
  u64 total = 0;
  for (const CountArray& array : arrays_) total += array.bytes();
  return total;
}

SlidingFilter::State SlidingFilter::dump(u64 room, u8* out) const {
  const CallScope scope;
  const std::lock_guard lock(mutex_);
  State state{key_, head_, head_increment_, failures_, {}};
  for (const CountArray& array : arrays_) state.arrays.push_back(array.shape());
  if (state.bytes() > room) return state;
  for (const CountArray& array : arrays_) {
    array.dump(out);
    out += array.shape().bytes();
  }
  return state;
}

void SlidingFilter::restore(const State& state, const u8* from, u64 bytes) {
  const CallScope scope;
  if (state.arrays.size() != settings_.parts || state.head >= settings_.parts ||
      state.head_increment % settings_.parts != state.head)
    throw std::invalid_argument(
        "a filter's state of " + std::to_string(state.arrays.size()) + " arrays with head " +
        std::to_string(state.head) + " after " + std::to_string(state.head_increment) +
        " advances does not fit a filter of " + std::to_string(settings_.parts));
  std::vector<CountArray> arrays;
  for (const CountArray::Shape& shape : state.arrays) {
    CountArray& array = arrays.emplace_back(part_capacity());
    array.check_shape(shape);
    if (shape.bytes() > bytes)
      throw std::invalid_argument("a filter's state ends in the middle of an array");
    array.restore(shape, from);
    from += shape.bytes();
    bytes -= shape.bytes();
  }
  if (bytes != 0)
    throw std::invalid_argument("a filter's state has " + std::to_string(bytes) +
                                " bytes behind its last array");
  const std::lock_guard lock(mutex_);
  arrays_.swap(arrays);
  key_ = state.key;
  head_ = state.head;
  head_increment_ = state.head_increment;
  failures_ = state.failures;
}

}  // namespace hedgerow
