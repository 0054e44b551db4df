// Work on the rows of a batch, cut into blocks for the pool.
#pragma once

#include <algorithm>

#include "pool.h"

namespace hedgerow {

inline constexpr u64 kBlockRows = 2048;

// Bytes written, from which a second thread is sure to save more than its waking costs: on a busy
// machine that can be the better part of a millisecond.
inline constexpr u64 kWorthThreads = u64(4) << 20;

// Runs body(from, to) over [0, n), a block at a time; on this thread alone unless `many`.
template <class Body>
void for_blocks(u64 n, bool many, Body&& body) {
  const auto block = [&](i64 task) {
    const u64 from = u64(task) * kBlockRows;
    body(from, std::min(n, from + kBlockRows));
  };
  const i64 blocks = i64((n + kBlockRows - 1) / kBlockRows);
  if (many) return parallel_for(blocks, block);
  for (i64 task = 0; task < blocks; ++task) block(task);
}

// Cuts [0, n) into parts for threads that all read the whole input and each write what lies in
// their part: where every sum is made by one thread, its order does not depend on how many there
// are. Runs body(from, to) for each; on this thread alone unless `many`.
template <class Body>
void for_parts(u64 n, bool many, Body&& body) {
  const u64 parts = many ? std::clamp<u64>(n, 1, u64(thread_count())) : 1;
  parallel_for(i64(parts),
               [&](i64 part) { body(n * u64(part) / parts, n * u64(part + 1) / parts); });
}

}  // namespace hedgerow
