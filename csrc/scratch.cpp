// The count of working memory.
#include "scratch.h"

#include <atomic>

namespace hedgerow {
namespace {

std::atomic<u64> taken{0};

}  // namespace

u64 scratch_bytes() { return taken; }

void reset_scratch_bytes() { taken = 0; }

void count_scratch(u64 bytes) { taken.fetch_add(bytes, std::memory_order_relaxed); }

}  // namespace hedgerow
