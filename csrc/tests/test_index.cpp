// The index against std::unordered_map: random inserts, erasures, growth and scans.
#include <unordered_map>
#include <unordered_set>

#include "check.h"
#include "index.h"
#include "shard_of.h"

using namespace hedgerow;

namespace {

const SlotHash hash(5);
u64 place(u64 key) { return position_of(hash(key)); }

void make_room(Index& index, u64 rows) {
  if (!index.has_room(rows)) index = index.grown(rows);
}

void same_as_model(const Index& index, const std::unordered_map<u64, u32>& model, u64 limit) {
  CHECK(index.size() == model.size());
  for (const auto& [key, row] : model) CHECK(index.find(key, place(key)) == row);
  std::vector<KeyRow> all, part;
  u64 from = 0;
  for (bool done = false; !done;) {
    part.clear();
    from = index.scan(from, limit, part, done);
    all.insert(all.end(), part.begin(), part.end());
  }
  CHECK(all.size() == model.size());
  for (const KeyRow& entry : all) CHECK(model.at(entry.key) == entry.row);
}

void random_operations(u64 keys, int operations, u64 seed) {
  std::mt19937_64 random(seed);
  Index index(0.3, hash);
  std::unordered_map<u64, u32> model;
  for (int i = 0; i < operations; ++i) {
    const u64 key = random() % keys * 0x9e3779b97f4a7c15ull;
    if (random() % 3 != 0) {
      if (model.count(key)) continue;
      make_room(index, index.size() + 1);
      index.insert(key, place(key), u32(i));
      model[key] = u32(i);
    } else {
      const auto found = model.find(key);
      const u32 expected = found == model.end() ? kNoRow : found->second;
      CHECK(index.erase(key, place(key)) == expected);
      if (found != model.end()) model.erase(found);
    }
    if (i % (operations / 8) == 0) same_as_model(index, model, 7);
  }
  same_as_model(index, model, 1000);
  for (const auto& [key, row] : std::unordered_map<u64, u32>(model)) {
    CHECK(index.erase(key, place(key)) == row);
    model.erase(key);
  }
  CHECK(index.size() == 0 && index.longest_search() <= 1);  // erasing leaves no marks behind
  for (u64 k = 0; k < keys; ++k) {
    const u64 key = k * 0x9e3779b97f4a7c15ull;
    CHECK((index.find(key, place(key)) != kNoRow) == (model.count(key) != 0));
  }
}

// Keys that share one home and fill the buckets after it, so that every search runs round the end.
void crowded_home() {
  Index index(0.0, hash);
  make_room(index, 16);
  const u64 position = ~u64(0) << kShardBits;
  std::vector<u64> keys;
  for (u64 key = 1; keys.size() < 12; ++key) {
    keys.push_back(key);
    index.insert(key, position, u32(key));
  }
  for (u64 key : keys) CHECK(index.find(key, position) == u32(key));
  CHECK(index.find(99, position) == kNoRow);
  for (u64 key : keys) CHECK(index.erase(key, position) == u32(key));
  for (u64 key : keys) CHECK(index.find(key, position) == kNoRow);
  CHECK(index.erase(1, position) == kNoRow);
  CHECK(index.size() == 0);
}

// A scan that is interrupted by growth still gives every key once.
void scan_across_growth() {
  Index index(0.7, hash);
  std::unordered_set<u64> early;
  for (u64 key = 0; key < 3000; ++key) {
    make_room(index, index.size() + 1);
    index.insert(key, place(key), u32(key));
    early.insert(key);
  }
  std::vector<KeyRow> part;
  std::unordered_set<u64> seen;
  u64 from = 0, next_key = 100000;
  for (bool done = false; !done;) {
    part.clear();
    from = index.scan(from, 50, part, done);
    for (const KeyRow& entry : part) CHECK(seen.insert(entry.key).second);
    for (int i = 0; i < 100; ++i, ++next_key) {
      make_room(index, index.size() + 1);
      index.insert(next_key, place(next_key), u32(next_key));
    }
  }
  for (u64 key : early) CHECK(seen.count(key));
}

}  // namespace

int main() {
  random_operations(40, 4000, 1);
  random_operations(5000, 40000, 2);
  crowded_home();
  scan_across_growth();
  return 0;
}
