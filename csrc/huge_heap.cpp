// First fit by address: low addresses stay full, high ones can be returned.
#include "huge_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "memory.h"

namespace hedgerow {
namespace {

constexpr u64 kMapBytes = u64(64) << 20;  // mapped at once: untouched pages cost nothing

u64 up(u64 address) { return (address + kHugePage - 1) / kHugePage * kHugePage; }
u64 down(u64 address) { return address / kHugePage * kHugePage; }

// `bytes`, a multiple of the huge page, at an address that is one, too.
u8* map_pages(u64 bytes) {
  void* raw =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const u64 from = u64(raw), start = up(from), end = start + bytes;
  if (start > from) munmap(raw, start - from);
  if (from + bytes + kHugePage > end)
    munmap(reinterpret_cast<void*>(end), from + bytes + kHugePage - end);
  ask_for_huge_pages(reinterpret_cast<void*>(start), bytes);
  return reinterpret_cast<u8*>(start);
}

// Gives whole huge pages back; false where the system keeps them, as it does locked memory.
bool discard(u64 from, u64 to) { return return_pages(reinterpret_cast<void*>(from), to - from); }

void zero(u64 from, u64 to) { std::memset(reinterpret_cast<void*>(from), 0, to - from); }

}  // namespace

// Never destroyed: tables may outlive static destruction.
HugeHeap& HugeHeap::process() {
  static HugeHeap* const only = new HugeHeap;
  return *only;
}

u8* HugeHeap::take(u64 bytes) {
  const std::lock_guard hold(mutex_);
  const auto fits = [&](const auto& range) { return range.second >= bytes; };
  auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) {
    if (!map_more(bytes)) return nullptr;
    found = std::find_if(free_.begin(), free_.end(), fits);
  }
  const auto [from, size] = *found;
  free_.erase(found);
  if (size > bytes) free_.emplace(from + bytes, size - bytes);
  taken_ += bytes;
  return reinterpret_cast<u8*>(from);
}

bool HugeHeap::map_more(u64 bytes) {
  const u64 least = up(bytes);
  for (u64 size : {std::max(kMapBytes, least), least}) {
    u8* pages = map_pages(size);
    if (pages == nullptr) continue;
    add_free(u64(pages), size);
    return true;
  }
  return false;
}

void HugeHeap::give(u8* data, u64 bytes) {
  const u64 from = u64(data), to = from + bytes;
  const u64 whole_from = std::min(up(from), to), whole_to = std::max(down(to), whole_from);
  zero(from, whole_from);
  zero(whole_to, to);
  if (whole_to > whole_from && !discard(whole_from, whole_to)) zero(whole_from, whole_to);
  const std::lock_guard hold(mutex_);
  taken_ -= bytes;
  add_free(from, bytes);
}

double HugeHeap::idle_share() {
  const std::lock_guard hold(mutex_);
  u64 idle = 0;
  for (const auto& [from, bytes] : free_) {
    const u64 whole_from = up(from), whole_to = down(from + bytes);
    idle += whole_to > whole_from ? bytes - (whole_to - whole_from) : bytes;
  }
  return taken_ == 0 ? 0.0 : double(idle) / double(taken_);
}

void HugeHeap::add_free(u64 from, u64 bytes) {
  u64 to = from + bytes;
  auto next = free_.lower_bound(from);
  u64 whole_from = down(from), whole_to = up(to);  // pages that this range may have completed
  if (next != free_.end() && next->first == to) {
    to += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == from) {
      from = before->first;
      free_.erase(before);
    }
  }
  whole_from = std::max(whole_from, up(from));
  whole_to = std::min(whole_to, down(to));
  if (whole_to > whole_from) discard(whole_from, whole_to);
  free_.emplace(from, to - from);
}

}  // namespace hedgerow
