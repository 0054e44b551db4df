// Maps and returns blocks, and keeps the process's count.
#include "memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace hedgerow {
namespace {

constexpr u64 kHugePage = u64(2) << 20;
constexpr u64 kMapFrom = u64(256) << 10;  // smaller blocks come from the heap

std::atomic<u64> used{0};
std::atomic<u64> limit{0};

u64 round_up(u64 bytes, u64 unit) { return (bytes + unit - 1) / unit * unit; }

// Maps `bytes` at an address aligned to a huge page, giving the surplus back.
u8* map_aligned(u64 bytes) {
  void* raw =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const u64 from = u64(raw), to = from + bytes + kHugePage;
  const u64 start = round_up(from, kHugePage), end = start + bytes;
  if (start > from) munmap(raw, start - from);
  if (to > end) munmap(reinterpret_cast<void*>(end), to - end);
  return reinterpret_cast<u8*>(start);
}

}  // namespace

u64 memory_used() { return used.load(); }
u64 memory_limit() { return limit.load(); }
void set_memory_limit(u64 bytes) { limit.store(bytes); }

void Charge::add(u64 bytes) {
  const u64 now = used.fetch_add(bytes) + bytes;
  const u64 cap = limit.load(std::memory_order_relaxed);
  if (cap != 0 && now > cap) {
    used.fetch_sub(bytes);
    throw OutOfMemory(bytes, now - bytes, cap);
  }
  bytes_ += bytes;
}

void Charge::subtract(u64 bytes) {
  used.fetch_sub(bytes);
  bytes_ -= bytes;
}

Block::Block(u64 bytes, PageSize pages) {
  mapped_ = bytes >= kMapFrom;
  bytes_ = round_up(bytes, mapped_ ? 4096 : 64);
  if (mapped_) {
    data_ = map_aligned(bytes_);
  } else {
    data_ = static_cast<u8*>(std::aligned_alloc(64, bytes_));
    if (data_ != nullptr) std::memset(data_, 0, bytes_);
  }
  if (data_ == nullptr) throw OutOfMemory(bytes_, memory_used(), memory_limit());
  if (pages == PageSize::huge) use_huge_pages();
}

void Block::use_huge_pages() const {
#if defined(MADV_HUGEPAGE)
  if (mapped_) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

void Block::reset() {
  if (data_ == nullptr) return;
  if (mapped_) {
    munmap(data_, bytes_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace hedgerow
