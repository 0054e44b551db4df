// Snapshots and touched keys beside writers: the view is that of its start, and no key is lost.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "check.h"
#include "pool.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 4;

struct Row {
  float values[kDim];
  i64 time;
  bool operator==(const Row&) const = default;
};

std::map<i64, Row> read_all(Table& table, u64 ticket, u64 room) {
  std::map<i64, Row> found;
  std::vector<i64> ids(room), times(room);
  std::vector<float> rows(room * kDim);
  float no_state = 0;
  SnapshotStep step{0, false, 0};
  while (!step.done) {
    step = table.read_snapshot(ticket, room, ids.data(), rows.data(), &no_state, times.data());
    CHECK(step.needed == 0);
    for (u64 i = 0; i < step.rows; ++i) {
      Row row{{}, times[i]};
      std::copy_n(&rows[i * kDim], kDim, row.values);
      CHECK(found.emplace(ids[i], row).second);  // once
    }
  }
  return found;
}

std::map<i64, Row> live_rows(Table& table, const std::vector<i64>& ids) {
  std::vector<u8> there(ids.size());
  std::vector<float> rows(ids.size() * kDim);
  std::vector<i64> times(ids.size());
  float no_state = 0;
  table.entries(ids.data(), ids.size(), there.data(), rows.data(), &no_state, times.data());
  std::map<i64, Row> found;
  for (u64 i = 0; i < ids.size(); ++i) {
    if (!there[i]) continue;
    Row row{{}, times[i]};
    std::copy_n(&rows[i * kDim], kDim, row.values);
    found.emplace(ids[i], row);
  }
  return found;
}

// Writers change, erase, bring back and add rows all the time; a little aside makes them wait.
void views_beside_writers(u64 aside_bytes) {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(30000, 1);
  const u64 half = ids.size() / 2;
  table.assign(ids.data(), half, ones(half * kDim, 5).data(), 1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const float rate = 1;
    const std::vector<float> grads = ones(ids.size() * kDim);
    for (i64 time = 2; !stop; ++time)
      for (u64 from = 0; from < ids.size(); from += 3000)
        table.apply_gradients(ids.data() + from, 3000,
                              {grads.data(), &rate, 0, time, EqualIds::summed});
  });
  std::thread eraser([&] {
    std::vector<u8> erased(ids.size());
    for (u64 from = 0; !stop; from = (from + 700) % (ids.size() - 1000))
      table.erase(ids.data() + from, 1000, erased.data());
  });
  for (int round = 0; round < 6; ++round) {
    const SnapshotStart start = table.open_snapshot(aside_bytes, OtherWriters::pause);
    CHECK(start.ticket != 0);
    CHECK(table.open_snapshot(aside_bytes, OtherWriters::go_on).ticket == 0 && !table.clear());
    const std::map<i64, Row> expected = live_rows(table, ids);  // writers are paused
    CHECK(expected.size() == start.rows);
    table.resume_writers();
    CHECK(read_all(table, start.ticket, 500) == expected);
    table.close_snapshot(start.ticket);
  }
  stop = true;
  writer.join();
  eraser.join();
}

// Waiting writers go on when the view is closed unread.
void closing_releases_writers() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(2000, 2);
  const std::vector<float> rows = ones(ids.size() * kDim);
  table.assign(ids.data(), ids.size(), rows.data(), 1);
  const SnapshotStart start = table.open_snapshot(0, OtherWriters::go_on);
  std::atomic<int> calls{0};
  std::thread writer([&] {
    for (int i = 0; i < 2; ++i, ++calls) table.assign(ids.data(), 100, rows.data(), 2);
  });
  while (calls == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(calls == 1 && table.snapshot_use().aside_rows == 100);
  table.close_snapshot(start.ticket);
  writer.join();
  CHECK(table.snapshot_use().waited_s > 0.01);
}

// Every key touched by three threads is taken, or the table was said to be dirty as a whole.
void no_touch_is_lost(u64 capacity) {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(30000, 3);
  const u64 consumer = table.open_touched(capacity, Watched::training, OnOverflow::report_all);
  std::atomic<int> writing{3};
  std::vector<std::thread> writers;
  for (u64 part = 0; part < 3; ++part)
    writers.emplace_back([&, part] {
      const float rate = 1;
      const std::vector<float> grads = ones(1000 * kDim);
      for (u64 from = part * 10000; from < (part + 1) * 10000; from += 1000)
        table.apply_gradients(ids.data() + from, 1000,
                              {grads.data(), &rate, 0, 1, EqualIds::summed});
      --writing;
    });
  std::set<i64> seen;
  std::vector<i64> out(ids.size());
  bool whole = false;
  for (bool last = false; !last;) {
    last = writing == 0;
    const TouchedStep step = table.take_touched(consumer, 0, out.size(), out.data());
    CHECK(step.shard == kShards && step.needed == 0);
    whole = whole || step.whole;
    if (!step.whole) seen.insert(out.begin(), out.begin() + i64(step.keys));
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(whole || seen.size() == ids.size());
  CHECK(whole == (table.touched_use(consumer).overflows != 0));
  CHECK(table.touched_use(consumer).keys == 0);
  table.close_touched(consumer);
}

// Consumers come and go while others write.
void consumers_come_and_go() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(5000, 4);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const std::vector<float> rows = ones(ids.size() * kDim);
    while (!stop) table.assign(ids.data(), ids.size(), rows.data(), 1);
  });
  std::vector<i64> out(ids.size());
  for (int round = 0; round < 30; ++round) {
    const u64 all = table.open_touched(1 << 20, Watched::every_change, OnOverflow::report_all);
    const u64 forgetting = table.open_touched(1000, Watched::training, OnOverflow::drop_all);
    table.touch(forgetting, ids.data(), 1005);
    const TouchedStep left = table.take_touched(forgetting, 0, out.size(), out.data());
    CHECK(left.keys == 4 && left.dropped == 1001 && !left.whole);
    table.take_touched(all, 0, out.size(), out.data());
    table.close_touched(all);
    table.close_touched(forgetting);
  }
  stop = true;
  writer.join();
}

// Rows go to another store of their table while both are viewed: each view has what it had.
void moves_tell_nobody() {
  Table from = sgd_table(kDim), to = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(5000, 7);
  const std::vector<float> given = ones(ids.size() * kDim, 3);
  from.assign(ids.data(), ids.size(), given.data(), 5);
  const std::map<i64, Row> before = live_rows(from, ids);
  const u64 here = from.open_touched(1 << 20, Watched::every_change, OnOverflow::report_all);
  const u64 there = to.open_touched(1 << 20, Watched::every_change, OnOverflow::report_all);
  const u64 left = from.open_snapshot(u64(1) << 30, OtherWriters::go_on).ticket;
  const u64 right = to.open_snapshot(u64(1) << 30, OtherWriters::go_on).ticket;
  std::vector<u8> found(ids.size()), gone(ids.size());
  std::vector<float> rows(ids.size() * kDim);
  std::vector<i64> times(ids.size());
  float no_state = 0;
  from.entries(ids.data(), ids.size(), found.data(), rows.data(), &no_state, times.data());
  CHECK(to.move_in(ids.data(), ids.size(), rows.data(), &no_state, times.data()) == 5000);
  CHECK(from.move_out(ids.data(), ids.size(), gone.data()) == 5000);
  CHECK(read_all(from, left, 1000) == before && read_all(to, right, 1000).empty());
  from.close_snapshot(left);
  to.close_snapshot(right);
  CHECK(from.size() == 0 && live_rows(to, ids) == before);
  CHECK(from.touched_use(here).keys == 0 && to.touched_use(there).keys == 0);
  CHECK(from.counted().erased == 0 && to.counted().inserted == 0 && to.newest_time() == 0);
}

}  // namespace

int main() {
  set_thread_count(2);
  views_beside_writers(u64(1) << 30);
  views_beside_writers(20000);
  closing_releases_writers();
  no_touch_is_lost(1 << 20);
  no_touch_is_lost(3000);
  consumers_come_and_go();
  moves_tell_nobody();
  return 0;
}
