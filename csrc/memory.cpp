// Maps and returns blocks, and keeps the process's count.
#include "memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "huge_heap.h"

namespace hedgerow {
namespace {

constexpr u64 kMapFrom = u64(256) << 10;  // smaller blocks come from the heap

std::atomic<u64> used{0};
std::atomic<u64> limit{0};

u64 round_up(u64 bytes, u64 unit) { return (bytes + unit - 1) / unit * unit; }

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

void ask_for_huge_pages(void* from, u64 bytes) {
#if defined(MADV_HUGEPAGE)
  const u64 start = round_up(u64(from), kHugePage),
            end = (u64(from) + bytes) / kHugePage * kHugePage;
  if (end > start) madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
#else
  (void)from, (void)bytes;
#endif
}

bool return_pages(void* from, u64 bytes) {
#if defined(__linux__)
  return madvise(from, bytes, MADV_DONTNEED) == 0;
#else  // elsewhere that advice does not promise zeros: new pages take the place of the old
  return mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
              0) != MAP_FAILED;
#endif
}

Block::Block(u64 bytes, PageSize pages) {
  if (pages == PageSize::huge) {
    kind_ = Kind::huge;
    bytes_ = round_up(bytes, 64);
    data_ = HugeHeap::process().take(bytes_);
  } else if (bytes >= kMapFrom) {
    kind_ = Kind::mapped;
    bytes_ = round_up(bytes, 4096);
    void* raw = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = raw == MAP_FAILED ? nullptr : static_cast<u8*>(raw);
  } else {
    kind_ = Kind::heap;
    bytes_ = round_up(bytes, 64);
    data_ = static_cast<u8*>(std::aligned_alloc(64, bytes_));
    if (data_ != nullptr) std::memset(data_, 0, bytes_);
  }
  if (data_ == nullptr) throw OutOfMemory(bytes_, memory_used(), memory_limit());
}

void Block::reset() {
  if (data_ == nullptr) return;
  switch (kind_) {
    case Kind::huge:
      HugeHeap::process().give(data_, bytes_);
      break;
    case Kind::mapped:
      munmap(data_, bytes_);
      break;
    case Kind::heap:
      std::free(data_);
      break;
  }
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace hedgerow
