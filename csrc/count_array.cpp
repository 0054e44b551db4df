// Probing, growth and the turn from wide to small cells.
#include "count_array.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hedgerow {
namespace {

constexpr u64 kHome = 16;  // cells: one line at full size
constexpr u64 kTail = 64;
constexpr u64 kFirstCells = 128;            // of a young array
constexpr u64 kHugeFrom = u64(64) << 10;    // bytes; smaller blocks are not worth huge pages
constexpr double kRoom = 1.2;               // cells an id at full size
constexpr u64 kFullOf = 4, kFullNumer = 3;  // a young array grows when three quarters are used

// Both homes follow from the 56 upper bits of the hash: wide cells keep them, to be moved by.
u64 scaled(u64 upper, u64 homes) { return ((upper >> 32) * homes) >> 32; }
u64 first_home(u64 hash, u64 cells) { return scaled(hash, cells / kHome) * kHome; }
u64 second_home(u64 hash, u64 cells) {
  return scaled((hash >> 8) * 0x9e3779b97f4a7c15ull, cells / kHome) * kHome;
}

template <class Cell>
Cell label(u64 hash) {
  return Cell(hash) & ~Cell(0xff);
}

template <class Cell>
u64 used(const u8* from, u64 cells) {
  u64 found = 0;
  for (u64 i = 0; i < cells; ++i) {
    Cell cell;
    std::memcpy(&cell, from + i * sizeof(Cell), sizeof(Cell));
    found += (cell & 0xff) != 0;
    if (cell != 0 && (cell & 0xff) == 0)
      throw std::invalid_argument("a cell of the filter's state has a label but no count");
  }
  return found;
}

}  // namespace

CountArray::CountArray(u64 ids)
    : most_cells_((u64(kRoom * double(ids)) + kTail + kHome - 1) / kHome * kHome) {}

template <class Cell>
Cell* CountArray::find(u64 hash) const {
  if (cells_ == 0) return nullptr;
  Cell* const cells = reinterpret_cast<Cell*>(block_.data());
  const Cell wanted = label<Cell>(hash);
  for (u64 home : {first_home(hash, cells_), second_home(hash, cells_)})
    for (Cell* cell = cells + home; cell != cells + home + kHome; ++cell)
      if ((*cell & 0xff) != 0 && (*cell & ~Cell(0xff)) == wanted) return cell;
  return nullptr;
}

// Into the emptier home, which keeps both from filling up early.
template <class Cell>
bool CountArray::place(u64 hash, u8 count) const {
  Cell* const cells = reinterpret_cast<Cell*>(block_.data());
  Cell* best = nullptr;
  u64 most = 0;
  for (u64 home : {first_home(hash, cells_), second_home(hash, cells_)}) {
    Cell* const from = cells + home;
    const auto is_empty = [](Cell cell) { return (cell & 0xff) == 0; };
    const u64 empty = u64(std::count_if(from, from + kHome, is_empty));
    if (empty <= most) continue;
    most = empty;
    best = std::find_if(from, from + kHome, is_empty);
  }
  if (best == nullptr) return false;
  *best = label<Cell>(hash) | count;
  return true;
}

// Without a branch on what a cell holds, so that compilers compare several cells at once.
template <class Cell>
u8 CountArray::count_in(u64 hash) const {
  const Cell* const cells = reinterpret_cast<const Cell*>(block_.data());
  const Cell wanted = label<Cell>(hash);
  Cell count = 0;
  for (u64 home : {first_home(hash, cells_), second_home(hash, cells_)}) {
    const Cell* const from = cells + home;
    for (u64 i = 0; i < kHome; ++i) {
      const Cell rest = from[i] ^ wanted;  // the count, where the labels are equal
      count = std::max(count, rest <= 0xff ? rest : Cell(0));
    }
  }
  return u8(count);
}

u8 CountArray::count(u64 hash) const {
  if (cells_ == 0) return 0;
  return is_full_size() ? count_in<u32>(hash) : count_in<u64>(hash);
}

void CountArray::set(u64 hash, u8 count) {
  if (is_full_size()) {
    u32* const cell = find<u32>(hash);
    *cell = (*cell & ~u32(0xff)) | count;
  } else {
    u64* const cell = find<u64>(hash);
    *cell = (*cell & ~u64(0xff)) | count;
  }
}

bool CountArray::insert(u64 hash, u8 count, u64& failures) {
  if (cells_ == 0 || (!is_full_size() && (size_ + 1) * kFullOf > cells_ * kFullNumer))
    grow(failures);
  for (;;) {
    if (is_full_size() ? place<u32>(hash, count) : place<u64>(hash, count)) {
      ++size_;
      return true;
    }
    if (is_full_size()) {
      ++failures;
      return false;
    }
    grow(failures);
  }
}

void CountArray::start(u64 cell_bytes, u64 cells) {
  const u64 bytes = cell_bytes * cells;
  charge_.add(bytes);
  block_ = Block(bytes, bytes >= kHugeFrom ? PageSize::huge : PageSize::small);
  cell_bytes_ = cell_bytes;
  cells_ = cells;
}

// How many found no place: next to none, since the larger array is mostly empty.
template <class Cell>
u64 CountArray::move_cells(CountArray& larger) const {
  const u64* const cells = reinterpret_cast<const u64*>(block_.data());
  for (u64 i = 0; i < cells_; ++i)
    if ((cells[i] & 0xff) != 0) larger.size_ += larger.place<Cell>(cells[i], u8(cells[i]));
  return size_ - larger.size_;
}

void CountArray::grow(u64& failures) {
  CountArray larger(0);
  larger.most_cells_ = most_cells_;
  const u64 doubled = cells_ == 0 ? kFirstCells : 2 * cells_;
  if (doubled < most_cells_ / 2) {  // no more bytes than at full size
    larger.start(sizeof(u64), doubled);
    failures += move_cells<u64>(larger);
  } else {
    larger.start(sizeof(u32), most_cells_);
    failures += move_cells<u32>(larger);
  }
  std::swap(*this, larger);
}

void CountArray::fetch(u64 hash) const {
  if (cells_ == 0) return;
  for (u64 home : {first_home(hash, cells_), second_home(hash, cells_)})
    fetch_bytes(block_.data() + home * cell_bytes_, kHome * cell_bytes_);
}

void CountArray::clear() {
  block_.reset();
  charge_.release();
  cell_bytes_ = cells_ = size_ = 0;
}

void CountArray::dump(u8* out) const {
  if (cells_ != 0) std::memcpy(out, block_.data(), shape().bytes());
}

void CountArray::check_shape(const Shape& shape) const {
  const bool young =
      shape.cell_bytes == sizeof(u64) && shape.cells % kHome == 0 && shape.cells < most_cells_ / 2;
  const bool grown = shape.cell_bytes == sizeof(u32) && shape.cells == most_cells_;
  if ((shape.cells == 0 && shape.size == 0) || young || grown) return;
  throw std::invalid_argument("an array of the filter's state has " + std::to_string(shape.cells) +
                              " cells of " + std::to_string(shape.cell_bytes) +
                              " bytes, which no array of this filter has");
}

void CountArray::restore(const Shape& shape, const u8* from) {
  const u64 found =
      shape.cell_bytes == sizeof(u32) ? used<u32>(from, shape.cells) : used<u64>(from, shape.cells);
  if (found != shape.size)
    throw std::invalid_argument("an array of the filter's state says " +
                                std::to_string(shape.size) + " ids and holds " +
                                std::to_string(found));
  CountArray other(0);
  other.most_cells_ = most_cells_;
  if (shape.cells != 0) {
    other.start(shape.cell_bytes, shape.cells);
    std::memcpy(other.block_.data(), from, shape.bytes());
    other.size_ = shape.size;
  }
  std::swap(*this, other);
}

}  // namespace hedgerow
