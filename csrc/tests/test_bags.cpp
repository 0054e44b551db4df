// Bags of features: an update finds rows where the lookup before saw them, and only there.
#include <atomic>
#include <thread>

#include "bags.h"
#include "check.h"
#include "pool.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 4;
constexpr u64 kSamples = 300, kIds = 500;

// One feature of bags with 0 to 3 ids below kIds.
struct Batch {
  std::vector<i64> ids, offsets{0};
  std::vector<u64> cells{0};

  explicit Batch(u64 seed) {
    std::mt19937_64 random(seed);
    for (u64 bag = 0; bag < kSamples; ++bag) {
      for (u64 n = random() % 4; n > 0; --n) ids.push_back(i64(random() % kIds));
      offsets.push_back(i64(ids.size()));
    }
  }
  IdCells ids_by_cell() const {
    return {ids.data(), ids.size(), offsets.data(), cells, kSamples, nullptr};
  }
};

struct Step {
  std::vector<float> out = std::vector<float>(kSamples * kDim), grads = ones(kSamples * kDim);
  float rate = 1;

  void run(const Bags& bags, const Batch& batch, const auto& between) {
    BagRows found;
    float* const room = out.data();
    bags.lookup(batch.ids_by_cell(), Phase::training, 0, {&room, 1}, OutputMemory::reused, &found);
    between();
    const BagsLearned one{&bags, &found, {{grads.data(), {kDim, 0, 1}}}};
    const TableStep step{{&rate, 1}, 1};
    learn_bags({&one, 1}, 0, {&step, 1}, 0);
  }
};

Bags sums(Table& table) { return Bags({{&table, Pooling::sum, 0, Missing::first_value}}, {0}); }

float value_of(const Table& table, i64 id) {
  float row[kDim];
  table.lookup(&id, 1, Missing::zeros, 0, row, OutputMemory::reused);
  for (float value : row) CHECK(value == row[0]);
  return row[0];
}

void an_update_searches_for_no_row() {
  Table table = sgd_table(kDim);
  const Bags bags = sums(table);
  const Batch batch(1);
  Step step;
  for (int i = 0; i < 2; ++i) {
    const u64 before = table.searched();
    u64 between = 0;
    step.run(bags, batch, [&] { between = table.searched(); });
    CHECK(between > before && table.searched() == between);
  }
  std::vector<float> wanted(kIds);
  for (i64 id : batch.ids) wanted[u64(id)] -= 2;
  for (u64 id = 0; id < kIds; ++id) CHECK(value_of(table, i64(id)) == wanted[id]);
}

// The rows of ids that leave between go to ids that come.
void rows_that_changed_hands_are_searched_again() {
  Table table = sgd_table(kDim);
  const Bags bags = sums(table);
  const Batch batch(2);
  Step step;
  step.run(bags, batch, [] {});
  std::vector<i64> others;
  for (u64 i = 0; i < kIds; ++i) others.push_back(i64(1000000 + i));
  const std::vector<float> sevens = ones(kIds * kDim, 7);
  step.run(bags, batch, [&] {
    std::vector<u8> gone(batch.ids.size());
    table.erase(batch.ids.data(), batch.ids.size(), gone.data());
    table.assign(others.data(), kIds, sevens.data(), 1);
  });
  std::vector<float> wanted(kIds);
  for (i64 id : batch.ids) wanted[u64(id)] -= 1;
  for (u64 id = 0; id < kIds; ++id) CHECK(value_of(table, i64(id)) == wanted[id]);
  for (i64 id : others) CHECK(value_of(table, id) == 7);
}

void beside_rows_that_come_and_go() {
  Table table = sgd_table(kDim);
  const Bags bags = sums(table);
  constexpr int kSteps = 60, kLearners = 3;
  std::vector<Batch> batches;
  for (u64 i = 0; i < kLearners; ++i) batches.emplace_back(10 + i);
  std::atomic<int> running{kLearners};
  std::vector<std::thread> threads;
  for (int i = 0; i < kLearners; ++i) {
    threads.emplace_back([&, i] {
      Step step;
      for (int k = 0; k < kSteps; ++k) step.run(bags, batches[u64(i)], [] {});
      --running;
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(5);
    const std::vector<float> sevens = ones(100 * kDim, 7);
    while (running > 0) {
      std::vector<i64> ids(100);
      for (i64& id : ids) id = i64(1000000 + random() % 5000);
      table.assign(ids.data(), ids.size(), sevens.data(), 1);
      for (i64& id : ids) id = i64(1000000 + random() % 5000);
      std::vector<u8> gone(ids.size());
      table.erase(ids.data(), ids.size(), gone.data());
    }
  });
  for (std::thread& thread : threads) thread.join();
  std::vector<float> wanted(kIds);
  for (const Batch& batch : batches)
    for (i64 id : batch.ids) wanted[u64(id)] -= kSteps;
  for (u64 id = 0; id < kIds; ++id) CHECK(value_of(table, i64(id)) == wanted[id]);
}

}  // namespace

int main() {
  set_thread_count(2);
  an_update_searches_for_no_row();
  rows_that_changed_hands_are_searched_again();
  beside_rows_that_come_and_go();
}
