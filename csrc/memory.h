// Memory for indexes and rows: page-aligned blocks, and the count of bytes they hold against a
// limit.
#pragma once

#include <new>
#include <utility>

#include "bits.h"

namespace hedgerow {

// Thrown when a table cannot get memory: the operating system refused, or the limit is reached.
struct OutOfMemory : std::bad_alloc {
  u64 wanted_bytes, used_bytes, limit_bytes;
  bool rows_changed =
      false;  // true only when other calls erased rows of this one, or scratch was refused
  OutOfMemory(u64 wanted, u64 used, u64 limit)
      : wanted_bytes(wanted), used_bytes(used), limit_bytes(limit) {}
};

u64 memory_used();   // bytes charged by all tables of this process
u64 memory_limit();  // 0: none

// Growth beyond the limit fails with OutOfMemory instead of waking the kernel's out-of-memory
// killer, which overcommitting systems do long after the allocation seemed to succeed.
void set_memory_limit(u64 bytes);

// Bytes charged to the process. Rows are mapped in large chunks and charged as they are taken,
// since untouched pages cost nothing.
class Charge {
 public:
  Charge() = default;
  ~Charge() { release(); }
  Charge(Charge&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void add(u64 bytes);  // throws OutOfMemory; nothing is charged then
  void subtract(u64 bytes);
  void release() { subtract(bytes_); }
  u64 bytes() const { return bytes_; }

 private:
  u64 bytes_ = 0;
};

enum class PageSize { small, huge };

// Asks for huge pages where memory that is about to be written for the first time covers them
// whole: 512 page faults become one. A hint.
void ask_for_huge_pages(void* from, u64 bytes);

// Gives whole pages of private memory back to the system. They stay mapped and read as zeros. False
// where the system keeps them, as it does locked memory; then they are as before.
bool return_pages(void* from, u64 bytes);

// Zero-filled memory, aligned to a cache line at least; not charged.
class Block {
 public:
  Block() = default;
  Block(u64 bytes, PageSize pages);  // throws OutOfMemory
  ~Block() { reset(); }
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }

  u8* data() const { return data_; }
  u64 bytes() const { return bytes_; }
  void reset();

 private:
  void swap(Block& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
  }

  u8* data_ = nullptr;
  u64 bytes_ = 0;
  enum class Kind { heap, mapped, huge } kind_ = Kind::heap;
};

}  // namespace hedgerow
