// Owners and ordered keys against plain loops, over many blocks and several threads.
#include <algorithm>
#include <numeric>
#include <random>

#include "bucketize.h"
#include "check.h"
#include "pool.h"
#include "route.h"

using namespace hedgerow;

namespace {

void divides(u64 by) {
  const Divisor divisor(by);
  std::mt19937_64 random(by);
  for (int i = 0; i < 1000; ++i) {
    const u64 key = i < 4 ? u64(i) - 2 : random() >> (random() % 64);
    CHECK(divisor(key).quotient == key / by && divisor(key).rest == key % by);
  }
}

std::vector<u64> some_keys(u64 n) {
  std::mt19937_64 random(n);
  std::vector<u64> keys(n);
  for (u64& key : keys) key = random() >> (random() % 64);
  return keys;
}

void owners_are_remainders(u64 n, u64 owners) {
  const std::vector<u64> keys = some_keys(n);
  std::vector<i64> found(n);
  std::vector<u64> local(n);
  const RouteRule rule{RouteCode::kRoundrobin, owners, 1, 0, nullptr, 0};
  route(rule, keys.data(), n, found.data(), local.data());
  for (u64 i = 0; i < n; ++i) CHECK(u64(found[i]) == keys[i] % owners + 1 && local[i] == keys[i]);
}

void keys_are_ordered_by_owner(u64 n, u64 rows, u64 shards) {
  const std::vector<u64> keys = some_keys(n);
  std::mt19937_64 random(rows);
  std::vector<i64> splits(rows + 1);
  for (i64& split : splits) split = i64(random() % (n + 1));
  splits.front() = 0;
  std::sort(splits.begin(), splits.end());
  splits.back() = i64(n);
  const std::vector<i64> feature_rows{0, i64(rows / 3), i64(rows)};
  const RouteRule rules[] = {{RouteCode::kHashRoundrobin, shards, 0, 0, nullptr, 0},
                             {RouteCode::kContinuous, shards, 0, 1000, nullptr, 0}};
  std::vector<i64> lengths(shards * rows), positions(n), places(n);
  std::vector<u64> moved(n);
  bucketize({keys.data(), splits.data(), rows, feature_rows.data(), rules, 2, shards, nullptr,
             KeyNames::local},
            {lengths.data(), moved.data(), nullptr, positions.data(), places.data()});
  i64 next = 0;
  for (u64 p = 0; p < shards; ++p)
    for (u64 row = 0; row < rows; ++row) {
      const RouteRule& rule = rules[row >= rows / 3];
      i64 count = 0;
      for (i64 i = splits[row]; i < splits[row + 1]; ++i) {
        u32 owner;
        u64 local;
        route_part(rule, keys.data() + i, 1, &owner, &local);
        if (owner != p) continue;
        CHECK(moved[u64(next)] == local && positions[u64(next)] == i - splits[row]);
        CHECK(places[u64(i)] == next);
        ++next, ++count;
      }
      CHECK(lengths[p * rows + row] == count);
    }
}

}  // namespace

int main() {
  for (const u64 by : {u64(1), u64(2), u64(3), u64(7), u64(1000), u64(1) << 32, (u64(1) << 62) + 1,
                       (u64(1) << 63) - 1})
    divides(by);
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    for (const u64 n : {0, 1, 16384, 100'000})
      for (const u64 owners : {1, 3, 8}) owners_are_remainders(n, owners);
    for (const u64 rows : {1, 5, 3000}) keys_are_ordered_by_owner(100'000, rows, 6);
    keys_are_ordered_by_owner(0, 4, 3);
    keys_are_ordered_by_owner(7, 4, 1);
  }
}
