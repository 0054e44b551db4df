// Evictions: exactly the rows a rule names leave, also while other threads write and read.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "check.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 4;
constexpr u64 kRoom = 5000;

template <class Step>
std::vector<i64> all_evicted(const Step& take) {
  std::vector<i64> gone, ids(kRoom), times(kRoom);
  ScanStep step{0, 0, false, 0};
  while (!step.done) {
    step = take(step.cursor, ids.data(), times.data(), gone.size());
    CHECK(step.needed == 0);
    gone.insert(gone.end(), ids.begin(), ids.begin() + i64(step.rows));
  }
  return gone;
}

std::vector<i64> evict_older(Table& table, i64 reference, const std::vector<i64>& ages) {
  return all_evicted([&](u64 cursor, i64* ids, i64* times, u64) {
    return table.evict_older(reference, ages.data(), cursor, kRoom, ids, times);
  });
}

std::vector<i64> evict_to(Table& table, LeaveBy order, u64 budget) {
  const Cut cut = table.find_cut(order, budget);
  return all_evicted([&](u64 cursor, i64* ids, i64* times, u64 gone) {
    return table.evict_ranked(order, {cut.excess - gone, cut.score, cut.key}, cursor, kRoom, ids,
                              times);
  });
}

void assign(Table& table, const std::vector<i64>& ids, u64 from, u64 n, i64 time) {
  table.assign(ids.data() + from, n, ones(n * kDim).data(), time);
}

void old_rows_leave() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(30000, 1);
  assign(table, ids, 0, 20000, 100);
  assign(table, ids, 20000, 10000, 200);
  const std::vector<i64> ages(kAgeSlots, 60);
  std::vector<i64> gone = evict_older(table, 200, ages), expected(ids.begin(), ids.begin() + 20000);
  std::sort(gone.begin(), gone.end());
  std::sort(expected.begin(), expected.end());
  CHECK(gone == expected);
  CHECK(table.size() == 10000);
}

void a_budget_is_met_exactly() {
  for (const LeaveBy order : {LeaveBy::time, LeaveBy::use}) {
    Table table({sgd_segment(kDim)}, false, false, 1, 0, true);
    const std::vector<i64> ids = random_ids(20000, 2);
    assign(table, ids, 0, 20000, 7);
    assign(table, ids, 0, 5000, 8);  // newer, and used twice
    const std::vector<i64> gone = evict_to(table, order, 8000);
    CHECK(gone.size() == 12000 && table.size() == 8000);
    const std::set<i64> left(gone.begin(), gone.end());
    for (u64 i = 0; i < 5000; ++i) CHECK(!left.contains(ids[i]));
    // Among equals the smallest ids leave.
    std::vector<i64> equal(ids.begin() + 5000, ids.end());
    std::sort(equal.begin(), equal.end());
    for (u64 i = 0; i < 12000; ++i) CHECK(left.contains(equal[i]));
    CHECK(table.find_cut(order, 8000).excess == 0);
  }
}

void updated_rows_stay_while_others_leave() {
  Table table({sgd_segment(kDim)}, false, false, 1, 0, true);
  const std::vector<i64> ids = random_ids(60000, 3);
  assign(table, ids, 0, 60000, 1);
  assign(table, ids, 0, 20000, 1000);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int round = 0; round < 20; ++round) assign(table, ids, 0, 20000, 1000 + round);
    stop = true;
  });
  std::thread reader([&] {
    std::vector<float> rows(20000 * kDim);
    while (!stop) {
      table.lookup(ids.data(), 20000, Missing::zeros, 0, rows.data(), true);
      for (float x : rows) CHECK(x == 1);
    }
  });
  const std::vector<i64> ages(kAgeSlots, 500);
  u64 gone = 0;
  while (!stop) {
    gone += evict_older(table, 1000, ages).size();
    gone += evict_to(table, LeaveBy::time, 20000).size();
    gone += evict_to(table, LeaveBy::use, 20000).size();
  }
  writer.join();
  reader.join();
  CHECK(gone == 40000 && table.size() == 20000);
}

}  // namespace

int main() {
  old_rows_leave();
  a_budget_is_met_exactly();
  updated_rows_stay_while_others_leave();
  return 0;
}
