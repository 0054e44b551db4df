// The count of working memory.
#include "scratch.h"

#include <atomic>

#include "memory.h"

namespace hedgerow {
namespace {

std::atomic<u64> taken{0};

}  // namespace

u64 scratch_bytes() { return taken; }

void reset_scratch_bytes() { taken = 0; }

void note_scratch(void* from, u64 bytes) {
  taken.fetch_add(bytes, std::memory_order_relaxed);
  ask_for_huge_pages(from, bytes);
}

}  // namespace hedgerow
