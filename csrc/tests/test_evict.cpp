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
constexpr u64 kUse = kOne;  // the weight of a use, with no half-life passed
constexpr u64 kTop = kUse + kAhead;

i64 stamp(i64 time, u64 mark) { return i64((u64(time) << kMarkBits) | mark); }

Table table_of_uses() {
  return Table({sgd_segment(kDim)}, RowForm::training, ZeroRows::store, 1, 0, Marks::uses);
}

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
  const Cut cut = table.find_cut(order, budget, kTop);
  return all_evicted([&](u64 cursor, i64* ids, i64* times, u64 gone) {
    return table.evict_ranked(order, {cut.excess - gone, cut.score, cut.key}, kTop, cursor, kRoom,
                              ids, times);
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
  for (const Marks marks : {Marks::none, Marks::turn, Marks::uses}) {
    const LeaveBy order = marks == Marks::uses ? LeaveBy::use : LeaveBy::time;
    Table table({sgd_segment(kDim)}, RowForm::training, ZeroRows::store, 1, 0, marks);
    const std::vector<i64> ids = random_ids(20000, 2);
    const bool uses = marks == Marks::uses, plain = marks == Marks::none;
    assign(table, ids, 0, 20000, plain ? 7 : stamp(7, uses ? kUse : 1));
    assign(table, ids, 0, 5000, plain ? 8 : stamp(7, uses ? kUse : 2));  // later, and used twice
    const std::vector<i64> gone = evict_to(table, order, 8000);
    CHECK(gone.size() == 12000 && table.size() == 8000);
    const std::set<i64> left(gone.begin(), gone.end());
    for (u64 i = 0; i < 5000; ++i) CHECK(!left.contains(ids[i]));
    // Among equals the smallest ids leave.
    std::vector<i64> equal(ids.begin() + 5000, ids.end());
    std::sort(equal.begin(), equal.end());
    for (u64 i = 0; i < 12000; ++i) CHECK(left.contains(equal[i]));
    const u64 looked_at = table.looked_at();
    CHECK(table.find_cut(order, 8000).excess == 0);
    CHECK(table.looked_at() == looked_at);
  }
}

void nothing_to_do_looks_at_nothing() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(30000, 4);
  assign(table, ids, 0, 30000, 100);
  const std::vector<i64> ages(kAgeSlots, 60);
  for (i64 now = 150; now < 160; ++now) CHECK(evict_older(table, now, ages).empty());
  assign(table, ids, 0, 10, 95);
  CHECK(evict_older(table, 154, ages).empty() && table.looked_at() == 0);
  Table other = sgd_table(kDim);  // rows that come from a table beside bring their oldest times
  CHECK(other.exchange(table) && evict_older(other, 154, ages).empty() && other.looked_at() == 0);
  CHECK(evict_older(other, 155, ages).size() == 10 && other.looked_at() > 0);
  const u64 walked = other.looked_at();
  for (i64 now = 155; now < 160; ++now) CHECK(evict_older(other, now, ages).empty());
  CHECK(other.looked_at() == walked);
  CHECK(evict_older(other, 160, ages).size() == 29990 && other.size() == 0);
}

// What a walk found holds for the ages that it was given, and for no other table's.
void a_walk_of_other_ages_says_nothing() {
  Table table = sgd_table(kDim), other = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(20000, 5), longer(kAgeSlots, 900);
  std::vector<i64> ages = longer;
  ages[0] = 10;  // rows of all other slots count as 890 younger
  assign(table, ids, 0, 20000, 100);
  evict_older(table, 1000 - 1, ages);
  const u64 left = table.size();
  CHECK(left > 0 && evict_older(table, 1000 - 1, longer).empty());
  evict_older(table, 1000 - 1, ages);
  const std::vector<i64> shorter(kAgeSlots, 60);
  CHECK(other.exchange(table) && evict_older(other, 160, shorter).size() == left);
}

void weights_add_up() {
  u64 weight = 0;
  for (u64 n = 1; n <= kOne; ++n) {
    weight = weights_added(weight, kUse);
    const u64 exponent = (weight - kUse) >> kFractionBits, fraction = weight & (kOne - 1);
    CHECK(((kOne + fraction) << exponent) >> kFractionBits == n);
  }
  const u64 later = kUse + (u64(3) << kFractionBits);  // three half-lives: eight times as much
  CHECK(weights_added(weights_added(0, later), kUse) == weights_added(kUse, later));
  CHECK(weights_added(later, kUse) == later + kOne / 8);
  CHECK(weights_added(later, 0) == later && weights_added(0, later) == later);
  const u64 last = kMark - kOne + 1;  // the exponent goes on behind the last one
  CHECK(weights_added(last, last) == 1 && place_of(1, 1 + kAhead) > place_of(last, 1 + kAhead));
}

void updated_rows_stay_while_others_leave() {
  Table plain = sgd_table(kDim), uses = table_of_uses();
  const std::vector<i64> ids = random_ids(60000, 3);
  const auto write = [&](u64 n, i64 time) {
    assign(plain, ids, 0, n, time);
    assign(uses, ids, 0, n, stamp(time, kUse));
  };
  write(60000, 1);
  write(20000, 1000);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int round = 0; round < 20; ++round) write(20000, 1000 + round);
    stop = true;
  });
  std::thread reader([&] {
    std::vector<float> rows(20000 * kDim);
    while (!stop) {
      plain.lookup(ids.data(), 20000, Missing::zeros, 0, rows.data(), OutputMemory::reused);
      for (float x : rows) CHECK(x == 1);
    }
  });
  const std::vector<i64> ages(kAgeSlots, 500);
  u64 gone = 0, unused = 0;
  while (!stop) {
    gone += evict_older(plain, 1000, ages).size();
    gone += evict_to(plain, LeaveBy::time, 20000).size();
    unused += evict_to(uses, LeaveBy::use, 20000).size();
  }
  writer.join();
  reader.join();
  CHECK(gone == 40000 && plain.size() == 20000);
  CHECK(unused == 40000 && uses.size() == 20000);
}

}  // namespace

int main() {
  old_rows_leave();
  a_budget_is_met_exactly();
  nothing_to_do_looks_at_nothing();
  a_walk_of_other_ages_says_nothing();
  weights_add_up();
  updated_rows_stay_while_others_leave();
  return 0;
}
