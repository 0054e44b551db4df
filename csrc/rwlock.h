// A reader-writer lock for one shard: writers go before new readers, who give way once, not for
// ever.
#pragma once

#include <atomic>

#include "bits.h"

namespace hedgerow {

HR_INLINE void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class RwLock {
 public:
  void lock_shared() {
    bool polite = true;  // give way to waiting writers once, not for ever
    u32 seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      const bool blocked =
          (seen & kWriter) || (polite && writers_waiting_.load(std::memory_order_relaxed) != 0);
      if (!blocked) {
        if (state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return;
        continue;
      }
      wait_for_change([&] {
        seen = state_.load(std::memory_order_seq_cst);
        return !(seen & kWriter) && !(polite && writers_waiting_.load() != 0);
      });
      polite = false;
      seen = state_.load(std::memory_order_relaxed);
    }
  }

  void unlock_shared() {
    if (state_.fetch_sub(1, std::memory_order_seq_cst) == 1) announce();
  }

  // Whether a writer waits for readers to leave. A hint: it may come a moment later.
  bool is_wanted() const { return writers_waiting_.load(std::memory_order_relaxed) != 0; }

  void lock() {
    u32 free = 0;
    if (state_.compare_exchange_strong(free, kWriter, std::memory_order_acquire)) return;
    writers_waiting_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      free = 0;
      if (state_.compare_exchange_weak(free, kWriter, std::memory_order_acquire)) break;
      wait_for_change([&] { return state_.load(std::memory_order_seq_cst) == 0; });
    }
    writers_waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void unlock() {
    state_.store(0, std::memory_order_seq_cst);
    announce();
  }

 private:
  static constexpr u32 kWriter = u32(1) << 31;
  static constexpr int kSpins = 200;  // about a microsecond: most holders are gone by then

  // Spins, then sleeps until some holder leaves. The epoch makes the sleep safe: a holder that
  // leaves between our check and our sleep has moved it on.
  template <class Ready>
  void wait_for_change(Ready ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return;
      cpu_relax();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const u32 epoch = epoch_.load(std::memory_order_seq_cst);
    if (!ready()) epoch_.wait(epoch, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void announce() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.notify_all();
  }

  std::atomic<u32> state_{0};  // kWriter, or the number of readers
  std::atomic<u32> writers_waiting_{0};
  std::atomic<u32> sleepers_{0};
  std::atomic<u32> epoch_{0};
};

}  // namespace hedgerow
