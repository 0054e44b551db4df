// The map of one batch's ids against std::unordered_map, over many rounds and hostile ids.
#include <random>
#include <unordered_map>

#include "check.h"
#include "id_map.h"

using namespace hedgerow;

namespace {

void agrees_with_a_plain_map() {
  std::mt19937_64 random(1);
  IdMap map;
  for (int round = 0; round < 300; ++round) {
    const u64 most = random() % (round % 7 == 0 ? 3000 : 40);
    const u64 kinds = 1 + random() % (2 * most + 1);
    std::unordered_map<u64, u32> plain;
    map.start(most);
    for (u64 i = 0; i < most; ++i) {
      u64 id = random() % kinds;
      if (round % 3 == 1) id = ~id;
      if (round % 3 == 2) id <<= 48;
      const u32 number = u32(random() >> 33);
      CHECK(map.insert(id, number) == plain.try_emplace(id, number).first->second);
    }
    for (u64 i = 0; i < 100; ++i) {
      const u64 id = i % 2 ? random() % kinds : ~(random() % kinds);
      const auto found = plain.find(id);
      CHECK(map.find(id) == (found == plain.end() ? IdMap::kAbsent : found->second));
    }
  }
}

void scratch_is_counted() {
  reset_scratch_bytes();
  IdMap map;
  map.start(1000);
  const u64 taken = scratch_bytes();
  CHECK(taken == 16 * 2048);
  map.start(1000);
  CHECK(scratch_bytes() == taken);
}

}  // namespace

int main() {
  agrees_with_a_plain_map();
  scratch_is_counted();
  return 0;
}
