// The heap of huge pages: ranges never overlap, are zero when taken, and join again when given.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <thread>

#include "check.h"
#include "huge_heap.h"

using namespace hedgerow;

namespace {

bool all_zero(const u8* data, u64 bytes) {
  return data[0] == 0 && std::memcmp(data, data + 1, bytes - 1) == 0;
}

void take_and_give(HugeHeap& heap, u64 seed) {
  std::mt19937_64 random(seed);
  std::map<u8*, u64> held;
  for (int i = 0; i < 600; ++i) {
    if (held.size() < 20 && random() % 3 != 0) {
      const u64 bytes = 64 * (1 + random() % (random() % 4 == 0 ? 100000 : 3000));
      u8* data = heap.take(bytes);
      CHECK(data != nullptr);
      CHECK(u64(data) % 64 == 0);
      CHECK(all_zero(data, bytes));
      std::memset(data, int(1 + seed % 200), bytes);
      held[data] = bytes;
    } else if (!held.empty()) {
      auto chosen = std::next(held.begin(), i64(random() % held.size()));
      for (u64 at = 0; at < chosen->second; at += 64) CHECK(chosen->first[at] == 1 + seed % 200);
      heap.give(chosen->first, chosen->second);
      held.erase(chosen);
    }
  }
  for (const auto& [data, bytes] : held) heap.give(data, bytes);
}

void given_ranges_join() {
  HugeHeap heap;
  const u64 bytes = u64(16) << 20;
  u8* first = heap.take(bytes);
  u8* second = heap.take(bytes);
  u8* third = heap.take(bytes);
  heap.give(first, bytes);
  heap.give(third, bytes);
  heap.give(second, bytes);
  CHECK(heap.take(3 * bytes) == first);
}

// Locked pages cannot be given back: they must be cleared instead.
void locked_memory_is_zero_when_taken_again() {
  HugeHeap heap;
  const u64 bytes = u64(6) << 20;
  u8* data = heap.take(bytes);
  if (mlock(data, bytes) != 0) return void(std::puts("heap: memory cannot be locked here"));
  std::memset(data, 7, bytes);
  heap.give(data, bytes);
  CHECK(heap.take(bytes) == data);
  CHECK(all_zero(data, bytes));
  munlock(data, bytes);
}

void too_much_is_refused() {
  HugeHeap heap;
  CHECK(heap.take(u64(1) << 60) == nullptr);
  CHECK(heap.take(64) != nullptr);
}

}  // namespace

int main() {
  HugeHeap heap;
  take_and_give(heap, 1);
  std::vector<std::thread> threads;
  for (u64 seed = 2; seed < 6; ++seed)
    threads.emplace_back([&heap, seed] { take_and_give(heap, seed); });
  for (std::thread& thread : threads) thread.join();
  given_ranges_join();
  locked_memory_is_zero_when_taken_again();
  too_much_is_refused();
  std::puts("heap: ok");
}
