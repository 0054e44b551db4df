// Zero-filled memory on huge pages, one range beside the other.
//
// A range of its own mapping has huge pages only where it covers them whole: of the index of a
// shard, a megabyte or three, a third would lie on small pages, and every search there walks the
// page tables. Ranges that share pages have none of that, and waste nothing at their ends.
#pragma once

#include <map>
#include <mutex>

#include "bits.h"

namespace hedgerow {

inline constexpr u64 kHugePage = u64(2) << 20;

class HugeHeap {
 public:
  static HugeHeap& process();

  // Aligned to a cache line. Null when the system has no memory. `bytes` is a multiple of 64.
  u8* take(u64 bytes);

  // Whole huge pages of the range go back to the system.
  void give(u8* from, u64 bytes);

  // Of memory that is not in use, what the system keeps since it shares huge pages with the rest,
  // as a part of what is taken.
  double idle_share();

 private:
  bool map_more(u64 bytes);
  void add_free(u64 from, u64 bytes);

  std::map<u64, u64> free_;  // address to bytes: zero-filled, neighbours joined
  u64 taken_ = 0;            // bytes
  std::mutex mutex_;
};

}  // namespace hedgerow
