// Layouts and their producer: against plain loops, the same with any number of threads, nothing
// read or written out of place (under the sanitizers).
#include <algorithm>

#include "check.h"
#include "ops_layout.h"
#include "pool.h"
#include "scratch.h"
#include "shard_fids.h"

using namespace hedgerow;

namespace {

constexpr u64 kRows = 400, kFeatures = 24, kShards = 3;

struct Produced {
  std::vector<i64> words, counts, fids;
  std::vector<int> offsets;
};

// What Python does between the two halves of the producer, for features of one table.
Produced produce(const std::vector<std::vector<i64>>& ids, const std::vector<std::vector<i64>>& cut,
                 const std::vector<u64>& widths, std::vector<i64>* lengths) {
  std::vector<FeatureRows> features;
  std::vector<FeatureLists> lists;
  u64 words = 0, entries = 0;
  for (u64 q = 0; q < ids.size(); ++q) {
    features.push_back(
        {ids[q].data(), cut[q].data(), cut[q].size() - 1, ids[q].size(), words, entries});
    lists.push_back({0, widths[q]});
    words += ids[q].size();
    entries += cut[q].size() - 1;
  }
  Produced found{std::vector<i64>(words),
                 std::vector<i64>(ids.size() * kShards),
                 {},
                 std::vector<int>(entries + 1)};
  found.offsets[entries] = int(words);
  CHECK(number_fids(features, kShards, EqualFids::listed_once, found.words.data(),
                    found.offsets.data(), found.counts.data()) == -1);
  std::vector<i64> rows(found.counts.size()), values(found.counts.size());
  i64 row = 0;
  lengths->assign(kShards, 0);
  for (u64 shard = 0; shard < kShards; ++shard)
    for (u64 q = 0; q < ids.size(); ++q) {
      const u64 at = q * kShards + shard;
      rows[at] = row;
      values[at] = (*lengths)[shard];
      row += found.counts[at];
      (*lengths)[shard] += found.counts[at] * i64(widths[q]);
    }
  found.fids.resize(u64(row));
  place_fids(features, lists, kShards, rows.data(), values.data(), found.words.data(),
             found.fids.data());
  return found;
}

struct Outcome {
  std::vector<float> first, second;
  std::vector<std::vector<float>> grads;
};

// A batch: even features are sums in one output, odd ones the first two of a row in another; every
// fifth has no ids, every fourth one row for all.
struct Batch {
  std::vector<std::vector<i64>> ids = std::vector<std::vector<i64>>(kFeatures), cut = ids;
  std::vector<u64> widths;
  std::vector<i64> tasks, nfl;
  i64 columns[2] = {0, 0};
  i64 entries = 0;

  explicit Batch(std::mt19937_64& random) {
    for (u64 q = 0; q < kFeatures; ++q) {
      const bool shared = q % 4 == 3;
      widths.push_back(4 * (1 + q));  // enough values for threads
      columns[q % 2] += i64(widths.back());
      nfl.push_back(entries | (shared ? i64(1) << 31 : 0));
      cut[q].push_back(0);
      for (u64 r = 0; r < (shared ? 1 : kRows); ++r, ++entries) {
        const u64 count = random() % 5 * (q % 5 != 4);
        for (u64 k = 0; k < count; ++k) ids[q].push_back(i64(random() % 9999) - 5000);
        cut[q].push_back(i64(ids[q].size()));
      }
    }
    nfl.push_back(entries + 1);
    i64 column[2] = {0, 0};
    for (u64 q = 0; q < kFeatures; ++q) {
      const i64 w = i64(widths[q]), kind = i64(q % 2), across = columns[kind];
      const i64 numbers[] = {i64(q),       kind,   3 * kind, 1 + kind, 0, w, (1 + kind) * across,
                             column[kind], across, 0};
      tasks.insert(tasks.end(), std::begin(numbers), std::end(numbers));
      column[kind] += w;
    }
  }
};

Outcome whole_way(int threads, bool overlap) {
  set_thread_count(threads);
  std::mt19937_64 random(7);
  const Batch given(random);
  std::vector<i64> lengths;
  Produced found = produce(given.ids, given.cut, given.widths, &lengths);
  if (overlap)
    for (i64& word : found.words) word &= ~i64(0xffffffff);
  const LayoutPlan plan(kFeatures, given.tasks);
  const i64 request[] = {0, 0, given.entries, 0, i64(found.words.size()), 0, i64(kRows)};
  const LayoutBatch batch(kShards, {std::begin(request), std::end(request)}, lengths,
                          given.nfl.data(), found.offsets.data(), OffsetType::int32,
                          found.words.data());
  CHECK(check_layout(plan, batch).kind == LayoutFault::none);

  const u64 columns = u64(given.columns[0]);
  Outcome out{std::vector<float>(kRows * columns),
              std::vector<float>(2 * kRows * u64(given.columns[1])),
              {}};
  std::vector<std::vector<float>> vectors;
  for (const i64 length : lengths) {
    vectors.emplace_back(u64(length));
    for (float& value : vectors.back()) value = float(random() % 32) / 8;
    out.grads.emplace_back(u64(length), 9.0f);
  }
  std::vector<const float*> from;
  std::vector<float*> to;
  for (auto& one : vectors) from.push_back(one.data());
  for (auto& one : out.grads) to.push_back(one.data());
  layout_forward<float>(plan, batch, from, {out.first.data(), out.second.data()});
  layout_backward<float>(plan, batch, {out.first.data(), out.second.data()}, 2.0f, to);

  // Feature 0: one column, summed; it is column 0 of the first output.
  for (u64 r = 0; r < kRows; ++r) {
    float sum = 0;
    for (i64 i = given.cut[0][r]; i < given.cut[0][r + 1]; ++i)
      sum += vectors[list_of(found.words[u64(i)])][offset_of(found.words[u64(i)])];
    CHECK(out.first[r * columns] == sum);
  }
  return out;
}

void threads_change_nothing() {
  for (const bool overlap : {false, true}) {
    const Outcome one = whole_way(1, overlap);
    for (const int threads : {2, 4}) {
      const Outcome other = whole_way(threads, overlap);
      CHECK(one.first == other.first && one.second == other.second && one.grads == other.grads);
    }
  }
}

void producers_list_each_id_once() {
  const std::vector<std::vector<i64>> ids{{-1, 5, -1, 4}, {5}};
  const std::vector<std::vector<i64>> cut{{0, 3, 4}, {0, 1}};
  std::vector<i64> lengths;
  const Produced found = produce(ids, cut, {2, 3}, &lengths);
  // -1 is 2^64 - 1, which 3 divides.
  CHECK((found.fids == std::vector<i64>{-1, 4, 5, 5}));
  CHECK((lengths == std::vector<i64>{2, 2, 5}));
  CHECK((found.words == std::vector<i64>{0, i64(2) << 32, 0, i64(1) << 32, i64(2) << 32 | 2}));
  CHECK((found.offsets == std::vector<int>{0, 3, 4, 5}));
}

}  // namespace

int main() {
  producers_list_each_id_once();
  threads_change_nothing();
  return 0;
}
