// Working memory that a thread keeps from one call to the next, counted over all threads.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "bits.h"

namespace hedgerow {

// Bytes of all buffers of all threads: what calls keep for the next.
inline std::atomic<u64> working_bytes{0};

// Room for n values that keeps its memory between calls and never fills it.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { let_go(); }
  T* ensure(u64 n) {
    if (n > capacity_) {
      let_go();
      data_ = std::make_unique_for_overwrite<T[]>(n);
      capacity_ = n;
      working_bytes.fetch_add(n * sizeof(T), std::memory_order_relaxed);
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }
  void keep_at_most(u64 bytes) {
    if (capacity_ * sizeof(T) > bytes) let_go();
  }

 private:
  void let_go() {
    working_bytes.fetch_sub(capacity_ * sizeof(T), std::memory_order_relaxed);
    data_.reset();
    capacity_ = 0;
  }

  std::unique_ptr<T[]> data_;
  u64 capacity_ = 0;
};

}  // namespace hedgerow
