// Groups of ids whose rows are known are those that the search for equal ids makes.
#include <algorithm>
#include <map>
#include <random>

#include "bucket.h"
#include "check.h"
#include "plan.h"

using namespace hedgerow;

namespace {

void check_equal(Plan& plan, Plan& known, const std::map<i64, u32>& row_of) {
  CHECK(plan.tiles() == known.tiles());
  for (int shard = 0; shard < kShards; ++shard) {
    CHECK(plan.groups(shard).size() == known.groups(shard).size());
    for (u64 tile = 0; tile < plan.tiles(); ++tile) {
      const auto one = plan.groups(shard, tile), other = known.groups(shard, tile);
      CHECK(one.size() == other.size());
      for (u64 g = 0; g < one.size(); ++g) {
        CHECK(one[g].key == other[g].key);
        CHECK(other[g].row == row_of.at(i64(one[g].key)));
        const auto at = plan.occurrences(one[g]), again = known.occurrences(other[g]);
        CHECK(std::equal(at.begin(), at.end(), again.begin(), again.end()));
      }
    }
  }
}

// `n` ids of `distinct` ones, whose rows are `stride` apart.
void groups_are_the_same(u64 n, u64 distinct, u32 stride, u64 tile_ids) {
  std::mt19937_64 random(n + distinct + stride);
  const std::vector<i64> some = random_ids(distinct, n + 1);
  std::map<i64, u32> row_of;
  for (u64 k = 0; k < distinct; ++k) row_of[some[k]] = u32(k) * stride;
  std::vector<i64> ids(n);
  std::vector<u32> rows(n);
  for (u64 i = 0; i < n; ++i) {
    ids[i] = i != 0 && random() % 4 == 0 ? ids[i - 1] : some[random() % distinct];
    rows[i] = row_of[ids[i]];
  }
  const SlotHash hash(random());
  Plan plan, known;
  plan.split(hash, ids.data(), n, tile_ids);
  for (int shard = 0; shard < kShards; ++shard) plan.group(shard);
  CHECK(!plan.has_rows());
  CHECK(known.group_known(hash, ids.data(), n, tile_ids, rows.data()));
  CHECK(known.has_rows());
  check_equal(plan, known, row_of);
  known.split(hash, ids.data(), n, tile_ids);  // the memory is used again
  CHECK(!known.has_rows());
}

void what_is_not_known_is_left() {
  const SlotHash hash(7);
  const std::vector<i64> ids = random_ids(40000, 3);
  std::vector<u32> rows(ids.size());
  for (u64 i = 0; i < ids.size(); ++i) rows[i] = u32(i);
  Plan plan;
  CHECK(!plan.group_known(hash, ids.data(), ids.size(), 1024, rows.data()));  // many: for the pool
  CHECK(!plan.group_known(hash, ids.data(), 0, 1024, rows.data()));
  rows[5] = kNoRow;
  CHECK(!plan.group_known(hash, ids.data(), 100, 1024, rows.data()));
  CHECK(plan.group_known(hash, ids.data(), 5, 1024, rows.data()));
}

}  // namespace

int main() {
  for (u64 n : {1, 2, 63, 512, 5000, 16384}) {
    for (u64 distinct : {1, 7, 1000, 20000}) {
      for (u32 stride : {1, 3, 4096}) {
        groups_are_the_same(n, distinct, stride, 1024);
        groups_are_the_same(n, distinct, stride, n);
      }
    }
  }
  what_is_not_known_is_left();
  return 0;
}
