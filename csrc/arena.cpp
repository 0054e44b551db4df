// Hands out rows, chunk by chunk.
#include "arena.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "huge_heap.h"

namespace hedgerow {
namespace {

constexpr int kMaxShift = 15;               // 32,768 rows
constexpr int kMinShift = 6;                // 64 rows, however wide
constexpr u64 kChunkBytes = u64(16) << 20;  // wide rows: fewer to a chunk
constexpr u64 kChunks = u64(1) << 17;       // 2^32 rows of 32,768; 1 MiB, touched as it fills
constexpr u64 kMaxRows = u64(0xffffffff);   // the last number means "no row"

constexpr u64 kSmallPage = 4096;

u64 pages(u64 bytes, u64 page) { return (bytes + page - 1) / page * page; }

int shift_for(u64 stride) {
  int shift = kMaxShift;
  while (shift > kMinShift && (stride << shift) > kChunkBytes) --shift;
  return shift;
}

}  // namespace

Arena::Arena(int stride, std::shared_ptr<RowFile> file)
    : stride_(u64(stride)),
      shift_(shift_for(stride_)),
      mask_((u32(1) << shift_) - 1),
      times_from_(stride_ << shift_),
      directory_(kChunks * sizeof(u8*), PageSize::small),
      chunks_(reinterpret_cast<u8**>(directory_.data())),
      file_(std::move(file)) {
  if (file_ != nullptr) file_->start(chunk_bytes(), kChunks);
}

u32 Arena::take(u32 rows) {
  const std::lock_guard hold(mutex_);
  for (Range& range : spare_) {
    if (range.count < rows) continue;
    count_in(rows);
    range.count -= rows;
    return range.first + range.count;
  }
  const u64 most = std::min(kMaxRows, kChunks << shift_);
  if (taken_ + rows > most)
    throw std::length_error("a table with rows of " + std::to_string(stride_) +
                            " bytes holds at most " + std::to_string(most) + " of them");
  while ((chunk_count_ << shift_) < taken_ + rows) add_chunk();
  count_in(rows);
  const u32 first = u32(taken_);
  taken_ += rows;
  return first;
}

void Arena::give_back(u32 first, u32 rows) {
  const std::lock_guard hold(mutex_);
  count_out(rows);
  if (u64(first) + rows == taken_) {
    taken_ = first;
    return;
  }
  std::erase_if(spare_, [](const Range& range) { return range.count == 0; });
  spare_.push_back({first, rows});
}

u64 Arena::chargeable(u64 bytes) const {
  return file_ == nullptr ? bytes : std::min(bytes, file_->budget_bytes());
}

void Arena::count_in(u32 rows) {
  const u64 bytes = held_bytes_ + rows * (stride_ + kBesideBytes);
  charge_.add(chargeable(bytes) - chargeable(held_bytes_));
  held_bytes_ = bytes;
}

void Arena::count_out(u32 rows) {
  const u64 bytes = held_bytes_ - rows * (stride_ + kBesideBytes);
  charge_.subtract(chargeable(held_bytes_) - chargeable(bytes));
  held_bytes_ = bytes;
}

void Arena::add_chunk() {
  if (file_ != nullptr) {
    chunks_[chunk_count_] = file_->add_chunk();
    ++chunk_count_;
    return;
  }
  // The first chunk stays on small pages: a table of a few rows must not take megabytes.
  const PageSize pages = blocks_.empty() ? PageSize::small : PageSize::huge;
  blocks_.push_back(Block(chunk_bytes(), pages));
  chunks_[chunk_count_++] = blocks_.back().data();
}

u32 Arena::end() const {
  const std::lock_guard hold(mutex_);
  return u32(taken_);
}

u64 Arena::taken_bytes() const {
  const std::lock_guard hold(mutex_);
  return held_bytes_;
}

u64 Arena::heap_bytes() const {
  const std::lock_guard hold(mutex_);
  return blocks_.size() < 2 ? 0 : (blocks_.size() - 1) * chunk_bytes();
}

// Rows and stamps of the last chunk are filled from their starts, page by page.
u64 Arena::ragged_bytes() const {
  const std::lock_guard hold(mutex_);
  const u64 directory = pages(chunk_count_ * sizeof(u8*), kSmallPage);
  const u64 rows = taken_ & mask_;
  if (file_ != nullptr || rows == 0) return directory;
  const u64 page = (taken_ >> shift_) == 0 ? kSmallPage : kHugePage;
  const u64 touched = pages(rows * stride_, page) + pages(rows * kBesideBytes, page);
  const u64 used = rows * (stride_ + kBesideBytes);
  return directory + std::max(std::min(touched, chunk_bytes()), used) - used;
}

void Arena::clear() {
  const std::lock_guard hold(mutex_);
  blocks_.clear();
  if (file_ != nullptr) file_->clear();
  chunk_count_ = 0;
  held_bytes_ = 0;
  spare_.clear();
  charge_.release();
  taken_ = 0;
}

// Both in memory, or in files with one budget: what is charged for a file's rows depends on it.
bool Arena::can_swap(const Arena& other) const {
  if (stride_ != other.stride_) return false;
  if (file_ == nullptr || other.file_ == nullptr) return file_ == other.file_;
  return file_->budget_bytes() == other.file_->budget_bytes();
}

void Arena::swap(Arena& other) {
  const std::scoped_lock hold(mutex_, other.mutex_);
  std::swap(directory_, other.directory_);
  std::swap(chunks_, other.chunks_);
  std::swap(blocks_, other.blocks_);
  if (file_ != nullptr) file_->swap(*other.file_);
  std::swap(chunk_count_, other.chunk_count_);
  std::swap(held_bytes_, other.held_bytes_);
  std::swap(charge_, other.charge_);
  std::swap(spare_, other.spare_);
  std::swap(taken_, other.taken_);
}

}  // namespace hedgerow
