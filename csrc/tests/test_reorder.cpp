// Reordering against a plain dedup: duplicates, empty slots, any count of shards, several threads.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "check.h"
#include "pool.h"
#include "reorder.h"

using namespace hedgerow;

namespace {

std::vector<u64> some_ids(std::mt19937_64& random, u64 n) {
  std::vector<u64> ids(n);
  for (u64& id : ids) id = (random() % (n + 1)) * (random() % 2 ? 1 : ~u64(0) / 3);
  return ids;
}

void fused(u64 slots, u64 shards, bool rank0_empty, u64 growth = 50) {
  std::mt19937_64 random(slots * 1000 + shards);
  std::vector<std::vector<u64>> ids;
  std::vector<SlotIds> args;
  u64 total = 0;
  for (u64 m = 0; m < slots; ++m) ids.push_back(some_ids(random, m % 3 == 2 ? 0 : growth * m + 7));
  for (u64 m = 0; m < slots; ++m) {
    args.push_back({ids[m].data(), ids[m].size(), m % 5});
    total += ids[m].size();
  }
  std::vector<u64> out(total);
  std::vector<i32> shard_sizes(shards), slot_sizes(shards * slots), offsets(total);
  const Reordered made =
      fused_reorder({args, shards, rank0_empty},
                    {out.data(), shard_sizes.data(), slot_sizes.data(), offsets.data()});

  u64 at = 0, value = 0;
  std::vector<std::unordered_map<u64, u64>> places(slots);
  for (u64 s = 0; s < shards; ++s) {
    const u64 before = at;
    for (u64 m = 0; m < slots; ++m) {
      const u64 from = at;
      for (const u64 id : ids[m]) {
        if (id % (shards - rank0_empty) + rank0_empty != s || !places[m].emplace(id, value).second)
          continue;
        CHECK(out[at++] == id);
        value += args[m].dim;
      }
      CHECK(u64(slot_sizes[s * slots + m]) == at - from);
    }
    CHECK(u64(shard_sizes[s]) == at - before);
  }
  CHECK(made.ids == at && made.values == value);
  u64 i = 0;
  for (u64 m = 0; m < slots; ++m)
    for (const u64 id : ids[m]) CHECK(u64(offsets[i++]) == places[m].at(id));
}

void too_many_values() {
  const std::vector<u64> ids = {1, 2, 1};
  const std::vector<SlotIds> slots = {{ids.data(), 3, u64(1) << 30}};
  const std::vector<SlotIds> huge = {{ids.data(), 3, ~u64(0) >> 1}};
  std::vector<u64> out(3, 77);
  std::vector<i32> shard_sizes(2), slot_sizes(2), offsets(3);
  const FusedReorderOut to{out.data(), shard_sizes.data(), slot_sizes.data(), offsets.data()};
  CHECK(fused_reorder({slots, 2, false}, to).values == u64(1) << 31);
  CHECK(fused_reorder({huge, 2, false}, to).values == u64(1) << 63);
  CHECK(out == std::vector<u64>(3, 77));
}

void rows_keep_their_first_shard(u64 n, u64 shards) {
  std::mt19937_64 random(n);
  const std::vector<u64> ids = some_ids(random, n);
  std::vector<i32> of(n), sizes(shards);
  for (i32& shard : of) shard = i32(random() % shards);
  std::vector<std::vector<u64>> wanted(shards);
  std::unordered_set<u64> seen;
  for (u64 i = 0; i < n; ++i)
    if (seen.insert(ids[i]).second) wanted[u64(of[i])].insert(wanted[u64(of[i])].begin(), ids[i]);
  std::vector<u64> out(n);
  const u8* bytes = reinterpret_cast<const u8*>(ids.data());
  const u64 kept = reorder({bytes, Key::int64, 8, bytes, 8, n, of.data(), shards},
                           reinterpret_cast<u8*>(out.data()), sizes.data());
  CHECK(kept == seen.size());
  u64 at = 0;
  for (u64 s = 0; s < shards; ++s) {
    CHECK(u64(sizes[s]) == wanted[s].size());
    for (const u64 id : wanted[s]) CHECK(out[at++] == id);
  }
}

}  // namespace

int main() {
  set_thread_count(3);
  for (const u64 shards : {1, 2, 3, 8, 300})
    for (const u64 slots : {1, 2, 9}) fused(slots, shards, false);
  for (const u64 shards : {2, 3, 9}) fused(5, shards, true);
  fused(9, 37, false, 5000);  // enough for several threads
  too_many_values();
  for (const u64 n : {0, 1, 15, 17, 5000}) rows_keep_their_first_shard(n, 7);
  return 0;
}
