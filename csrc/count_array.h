// Counts of ids, one part of a sliding filter: a small hash array of labels and 8-bit counts.
//
// A label has two homes of sixteen cells and goes to the emptier one: with one home, or two of
// eight, one id in twenty-five or a thousand would find no cell when the array is full. At its full
// size a cell is a 24-bit label and the count. Cells that small cannot be moved to a larger array,
// so a young array has 64-bit cells with 56 bits of the hash, doubles as it fills, and turns into
// the small ones when those take no more memory: it takes memory for the ids it saw, not for those
// it may see.
#pragma once

#include "memory.h"

namespace hedgerow {

class CountArray {
 public:
  // What an array looks like, for a checkpoint: `cells` of `cell_bytes` bytes, `size` of them used.
  struct Shape {
    u64 cell_bytes, cells, size;
    u64 bytes() const { return cell_bytes * cells; }
  };

  explicit CountArray(u64 ids);  // so many at most

  // The count of a hash, 0 if it has none.
  u8 count(u64 hash) const;
  // Replaces the count of a hash that has one.
  void set(u64 hash, u8 count);
  // A hash that has none. False if there is no cell for it; `failures` counts that, and counts that
  // were lost while the array grew. May throw OutOfMemory, unchanged.
  bool insert(u64 hash, u8 count, u64& failures);
  void fetch(u64 hash) const;
  void clear();

  u64 size() const { return size_; }
  u64 bytes() const { return block_.bytes(); }

  Shape shape() const { return {cell_bytes_, cells_, size_}; }
  void dump(u8* out) const;
  void check_shape(const Shape& shape) const;        // throws std::invalid_argument
  void restore(const Shape& shape, const u8* from);  // of a shape that was checked; may throw too

 private:
  template <class Cell>
  Cell* find(u64 hash) const;
  template <class Cell>
  u8 count_in(u64 hash) const;
  template <class Cell>
  bool place(u64 hash, u8 count) const;
  template <class Cell>
  u64 move_cells(CountArray& larger) const;
  bool is_full_size() const { return cell_bytes_ == sizeof(u32); }
  void start(u64 cell_bytes, u64 cells);
  void grow(u64& failures);

  u64 most_cells_;
  u64 cell_bytes_ = 0, cells_ = 0, size_ = 0;
  Charge charge_;
  Block block_;
};

}  // namespace hedgerow
