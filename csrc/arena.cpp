// Hands out rows, chunk by chunk.
#include "arena.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace hedgerow {
namespace {

constexpr int kMaxShift = 15;               // 32,768 rows
constexpr int kMinShift = 6;                // 64 rows, however wide
constexpr u64 kChunkBytes = u64(16) << 20;  // wide rows: fewer to a chunk
constexpr u64 kChunks = u64(1) << 17;       // 2^32 rows of 32,768; 1 MiB, touched as it fills
constexpr u64 kMaxRows = u64(0xffffffff);   // the last number means "no row"

int shift_for(u64 stride) {
  int shift = kMaxShift;
  while (shift > kMinShift && (stride << shift) > kChunkBytes) --shift;
  return shift;
}

}  // namespace

Arena::Arena(int stride, bool counts_uses)
    : stride_(u64(stride)),
      shift_(shift_for(stride_)),
      mask_((u32(1) << shift_) - 1),
      times_from_(stride_ << shift_),
      counts_uses_(counts_uses),
      uses_from_(times_from_ + (u64(8) << shift_)),
      directory_(kChunks * sizeof(u8*), PageSize::small),
      chunks_(reinterpret_cast<u8**>(directory_.data())) {}

u32 Arena::take(u32 rows) {
  const std::lock_guard hold(mutex_);
  for (Range& range : spare_) {
    if (range.count < rows) continue;
    charge_.add(rows * (stride_ + beside_bytes()));
    range.count -= rows;
    return range.first + range.count;
  }
  const u64 most = std::min(kMaxRows, kChunks << shift_);
  if (taken_ + rows > most)
    throw std::length_error("a table with rows of " + std::to_string(stride_) +
                            " bytes holds at most " + std::to_string(most) + " of them");
  while ((u64(blocks_.size()) << shift_) < taken_ + rows) add_chunk();
  charge_.add(rows * (stride_ + beside_bytes()));
  const u32 first = u32(taken_);
  taken_ += rows;
  return first;
}

void Arena::give_back(u32 first, u32 rows) {
  const std::lock_guard hold(mutex_);
  charge_.subtract(rows * (stride_ + beside_bytes()));
  if (u64(first) + rows == taken_) {
    taken_ = first;
    return;
  }
  std::erase_if(spare_, [](const Range& range) { return range.count == 0; });
  spare_.push_back({first, rows});
}

void Arena::add_chunk() {
  // The first chunk stays on small pages: a table of a few rows must not take megabytes.
  const PageSize pages = blocks_.empty() ? PageSize::small : PageSize::huge;
  blocks_.push_back(Block(times_from_ + (beside_bytes() << shift_), pages));
  chunks_[blocks_.size() - 1] = blocks_.back().data();
}

u32 Arena::end() const {
  const std::lock_guard hold(mutex_);
  return u32(taken_);
}

u64 Arena::taken_bytes() const {
  const std::lock_guard hold(mutex_);
  return charge_.bytes();
}

void Arena::clear() {
  const std::lock_guard hold(mutex_);
  blocks_.clear();
  spare_.clear();
  charge_.release();
  taken_ = 0;
}

void Arena::swap(Arena& other) {
  const std::scoped_lock hold(mutex_, other.mutex_);
  std::swap(directory_, other.directory_);
  std::swap(chunks_, other.chunks_);
  std::swap(blocks_, other.blocks_);
  std::swap(charge_, other.charge_);
  std::swap(spare_, other.spare_);
  std::swap(taken_, other.taken_);
}

}  // namespace hedgerow
