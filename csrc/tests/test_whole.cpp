// Tables that exchange all rows beside readers, writers and evictions: everyone sees one or the
// other.
#include <algorithm>
#include <atomic>
#include <thread>

#include "check.h"
#include "pool.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 4;
constexpr u64 kRows = 5000;

void fill(Table& table, const std::vector<i64>& ids, float value, i64 time) {
  const std::vector<float> rows(ids.size() * kDim, value);
  table.assign(ids.data(), ids.size(), rows.data(), time);
}

float first_of(const Table& table, i64 id) {
  float row[kDim];
  table.lookup(&id, 1, Missing::zeros, 0, row, OutputMemory::reused);
  for (float value : row) CHECK(value == row[0]);  // never half of one and half of the other
  return row[0];
}

void rows_and_time_change_places() {
  Table live = sgd_table(kDim), staged = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(kRows, 1);
  const u64 all = live.open_touched(100, Watched::every_change, OnOverflow::report_all),
            learned = live.open_touched(100, Watched::training, OnOverflow::report_all);
  fill(staged, ids, 2, 9);
  CHECK(live.exchange(staged));
  CHECK(live.size() == kRows && staged.size() == 0);
  CHECK(live.newest_time() == 9 && staged.newest_time() == 0);
  for (i64 id : ids) CHECK(first_of(live, id) == 2);
  i64 room[1];
  CHECK(live.take_touched(all, 0, 0, room).whole);
  CHECK(!live.take_touched(learned, 0, 0, room).whole);
  fill(live, random_ids(kRows, 2), 3, 9);  // both go on
  fill(staged, random_ids(kRows, 3), 3, 9);
  CHECK(live.exchange(live));
  CHECK(live.size() == 2 * kRows && staged.size() == kRows);
}

void an_open_snapshot_refuses() {
  Table live = sgd_table(kDim), staged = sgd_table(kDim);
  fill(live, random_ids(10, 1), 1, 1);
  const SnapshotStart start = live.open_snapshot(1 << 20, OtherWriters::go_on);
  CHECK(!live.exchange(staged) && !staged.exchange(live) && live.size() == 10);
  live.close_snapshot(start.ticket);
  CHECK(staged.exchange(live) && staged.size() == 10);
}

void beside_everyone() {
  Table first = sgd_table(kDim), second = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(kRows, 4), more = random_ids(kRows, 5);
  fill(first, ids, 1, 100);
  fill(second, ids, 2, 100);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop)
      for (u64 i = 0; i < kRows; i += 97) {
        const float value = first_of(first, ids[i]);
        CHECK(value == 1 || value == 2);
      }
  });
  std::thread writer([&] {
    while (!stop) fill(first, more, 7, 1);
  });
  std::thread evictor([&] {
    const std::vector<i64> ages(kAgeSlots, 50);
    std::vector<i64> gone(kRows), times(kRows);
    while (!stop) {
      ScanStep step{0, 0, false, 0};
      while (!step.done)
        step = second.evict_older(100, ages.data(), step.cursor, kRows, gone.data(), times.data());
    }
  });
  for (int round = 0; round < 200; ++round) CHECK(first.exchange(second));
  stop = true;
  reader.join();
  writer.join();
  evictor.join();
  for (i64 id : ids) CHECK(first_of(first, id) + first_of(second, id) == 3);
}

}  // namespace

int main() {
  set_thread_count(2);
  rows_and_time_change_places();
  an_open_snapshot_refuses();
  beside_everyone();
  return 0;
}
