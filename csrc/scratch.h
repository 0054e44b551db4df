// Working memory of one call of an op, counted: tests prove that an op takes no more than it needs.
#pragma once

#include <memory>

#include "bits.h"

namespace hedgerow {

u64 scratch_bytes();  // taken since the last reset, by all threads
void reset_scratch_bytes();
void note_scratch(void* from, u64 bytes);  // counts it, and asks for huge pages

// An array whose values are not set. Throws std::bad_alloc.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(u64 size) : data_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {
    note_scratch(data_.get(), sizeof(T) * size);
  }

  T* data() const { return data_.get(); }
  u64 size() const { return size_; }
  T& operator[](u64 i) const { return data_[i]; }
  T* begin() const { return data_.get(); }
  T* end() const { return data_.get() + size_; }

 private:
  std::unique_ptr<T[]> data_;
  u64 size_ = 0;
};

}  // namespace hedgerow
