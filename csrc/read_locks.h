// Shared locks on several shards of a table.
#pragma once

#include <memory>
#include <vector>

#include "shard.h"

namespace hedgerow {

// Those of a mask, taken in ascending order (as `clear` does: no deadlock).
class ReadLocks {
 public:
  ReadLocks(const std::vector<std::unique_ptr<Shard>>& shards, u64 mask)
      : shards_(shards), mask_(mask) {
    take();
  }
  ~ReadLocks() { leave(); }

  // Lets writers in who wait. All locks are left for them: who waits for one and holds another
  // could wait for ever.
  void give_way() {
    bool wanted = false;
    each([&](const RwLock& lock) { wanted |= lock.is_wanted(); });
    if (!wanted) return;
    leave();
    take();
  }

 private:
  void each(const auto& body) {
    for (u64 left = mask_; left != 0; left &= left - 1) body(shards_[__builtin_ctzll(left)]->lock);
  }
  void take() {
    each([](RwLock& lock) { lock.lock_shared(); });
  }
  void leave() {
    each([](RwLock& lock) { lock.unlock_shared(); });
  }

  const std::vector<std::unique_ptr<Shard>>& shards_;
  u64 mask_;
};

}  // namespace hedgerow
