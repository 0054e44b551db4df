// Readers, writers, scans and erasures from several threads at once: rows stay whole, none is lost.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "pool.h"
#include "several_tables.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 8;

// Every row a writer makes holds one value in all its columns; a torn row would show two.
bool whole(const float* row) {
  for (int c = 1; c < kDim; ++c)
    if (row[c] != row[0]) return false;
  return true;
}

void everything_at_once(int rounds) {
  Table table = sgd_table(kDim);
  // Several blocks of 1,024 rows in every shard: a call must notice what others did between two.
  const std::vector<i64> kept = random_ids(3000, 1), moving = random_ids(150000, 2);
  table.assign(kept.data(), kept.size(), ones(kept.size() * kDim, 5).data(), 1);
  std::atomic<bool> stop{false};

  std::thread assigner([&] {
    std::vector<float> rows(moving.size() * kDim);
    for (int round = 0; round < rounds; ++round) {
      for (u64 i = 0; i < rows.size(); ++i) rows[i] = float(round * 7 + 1);
      table.assign(moving.data(), moving.size(), rows.data(), round);
    }
    stop = true;
  });
  std::thread updater([&] {
    const std::vector<float> grads = ones(moving.size() * kDim, 0.5f);
    const float rate = 1;
    while (!stop)
      table.apply_gradients(moving.data(), moving.size(),
                            {grads.data(), &rate, 0, 1, EqualIds::summed});
  });
  std::thread eraser([&] {
    std::vector<u8> erased(moving.size());
    while (!stop) table.erase(moving.data() + 1000, moving.size() / 2, erased.data());
  });
  std::thread scanner([&] {
    constexpr u64 kRoom = 20000;
    std::vector<i64> ids(kRoom), times(kRoom);
    std::vector<float> rows(kRoom * kDim);
    float no_state = 0;
    while (!stop) {
      std::vector<i64> seen;
      ScanStep step{0, 0, false, 0};
      while (!step.done) {
        step = table.scan(step.cursor, kRoom, ids.data(), rows.data(), &no_state, times.data());
        CHECK(step.needed == 0);
        for (u64 i = 0; i < step.rows; ++i) CHECK(whole(&rows[i * kDim]));
        seen.insert(seen.end(), ids.begin(), ids.begin() + i64(step.rows));
      }
      std::sort(seen.begin(), seen.end());
      CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
      for (i64 id : kept) CHECK(std::binary_search(seen.begin(), seen.end(), id));
    }
  });
  std::vector<float> out(moving.size() * kDim);
  while (!stop) {
    table.lookup(kept.data(), kept.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
    for (u64 i = 0; i < kept.size() * kDim; ++i) CHECK(out[i] == 5);
    table.lookup(moving.data(), moving.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
    for (u64 i = 0; i < moving.size(); ++i) CHECK(whole(&out[i * kDim]));
    table.memory();
  }
  for (std::thread* thread : {&assigner, &updater, &eraser, &scanner}) thread->join();
  std::vector<u8> there(moving.size());
  table.contains(moving.data(), moving.size(), there.data());
  u64 rows = kept.size();
  for (u8 found : there) rows += found;
  CHECK(table.size() == rows);  // no id twice, none that was not asked for
}

// Sums of whole numbers do not depend on the order of updates: every one must have arrived.
void no_update_is_lost() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(150000, 3);
  const auto add = [&] {
    const std::vector<float> rows = ones(ids.size() * kDim);
    for (int round = 0; round < 3; ++round)
      table.assign_add(ids.data(), ids.size(), rows.data(), 1);
  };
  std::vector<std::thread> adders;
  for (int i = 0; i < 4; ++i) adders.emplace_back(add);
  for (std::thread& adder : adders) adder.join();
  std::vector<float> out(ids.size() * kDim);
  table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
  for (float value : out) CHECK(value == 12);
  CHECK(table.size() == ids.size());
}

void clearing_and_resizing_the_pool_meanwhile() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(150000, 4);
  const std::vector<float> rows = ones(ids.size() * kDim, 3);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 5; ++i) table.assign(ids.data(), ids.size(), rows.data(), 1);
    stop = true;
  });
  std::thread clearer([&] {
    while (!stop) table.clear();
  });
  std::thread resizer([&] {
    for (int i = 1; !stop; i = i % 4 + 1) set_thread_count(i);
  });
  std::vector<float> out(ids.size() * kDim);
  while (!stop) {
    table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
    for (u64 i = 0; i < ids.size(); ++i) CHECK(whole(&out[i * kDim]));
  }
  writer.join();
  clearer.join();
  resizer.join();
  table.clear();
  CHECK(table.size() == 0 && table.memory().row_bytes == 0);
}

// Two threads read two tables in one call each while others write them: every piece whole.
void several_tables_at_once() {
  Table first = sgd_table(kDim), second = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(6000, 9);
  const std::vector<u64> splits = {0, 2500, ids.size()};
  const std::vector<const Table*> tables = {&first, &second};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const std::vector<Table*> both = {&first, &second};
    const std::vector<u64> starts = {0, splits[1]}, ends = {splits[1] - 7, splits[2]};
    for (int round = 0; round < 40; ++round) {
      const std::vector<float> rows = ones(ids.size() * kDim, float(round + 1));
      const std::vector<i64> times(ids.size(), round);
      const float no_state = 0;
      if (round % 2 == 0) {
        move_in_several({both, starts, ends, ids.data(), rows.data(), &no_state, times.data()});
        continue;
      }
      first.assign(ids.data(), splits[1] - 7, rows.data(), round);
      second.assign(ids.data() + splits[1], ids.size() - splits[1], rows.data(), round);
    }
    stop = true;
  });
  const auto read = [&] {
    std::vector<u8> found(ids.size());
    std::vector<float> rows(ids.size() * kDim);
    std::vector<i64> times(ids.size());
    const std::vector<Missing> zeros(2, Missing::zeros);
    float no_state = 0;
    while (!stop) {
      const std::vector<u64> counts = read_several(
          {tables, splits}, {ids.data(), found.data(), rows.data(), &no_state, times.data()});
      CHECK(counts[0] + counts[1] == u64(std::count(found.begin(), found.end(), u8(1))));
      for (u64 i = 0; i < ids.size(); ++i) CHECK(whole(&rows[i * kDim]));
      lookup_several({tables, splits}, {ids.data(), zeros, 0, rows.data(), found.data()});
      for (u64 i = 0; i < ids.size(); ++i) {
        CHECK(whole(&rows[i * kDim]));
        CHECK((rows[i * kDim] != 0) == (found[i] != 0));
      }
    }
  };
  std::thread other(read);
  read();
  other.join();
  writer.join();
  CHECK(first.size() == u64(splits[1] - 7) && second.size() == ids.size() - u64(splits[1]));
}

// Who wants the pool while somebody has it in the background gets it, with its threads, before that
// work is done; and all tasks of both are done, each once.
void background_work_makes_way() {
  using Clock = std::chrono::steady_clock;
  constexpr int kTasks = 40000;
  std::atomic<int> done{0};
  std::atomic<bool> begun{false}, enough{false};
  std::vector<std::atomic<int>> times(kTasks);
  std::thread behind([&] {
    const CallScope scope;
    const InBackground background;
    parallel_for(kTasks, [&](i64 task) {
      begun = true;
      if (!enough) std::this_thread::sleep_for(std::chrono::microseconds(50));
      ++times[u64(task)];
      ++done;
    });
  });
  while (!begun) std::this_thread::yield();
  const CallScope scope;
  const auto caller = std::this_thread::get_id();
  for (int helped = 0; helped < 3;) {
    // Each waits a little for another, so that others have the time to come.
    std::atomic<int> met{0};
    std::atomic<bool> by_another{false};
    parallel_for(2, [&](i64) {
      const auto give_up = Clock::now() + std::chrono::milliseconds(20);
      if (std::this_thread::get_id() != caller) by_another = true;
      ++met;
      while (met < 2 && Clock::now() < give_up) std::this_thread::yield();
    });
    CHECK(done < kTasks);
    if (by_another) ++helped;
    // A call within a task, of whatever kind, does not wait for the pool that its task has.
    std::atomic<int> inner{0};
    parallel_for(3, [&](i64) { parallel_for(3, [&](i64) { ++inner; }); });
    CHECK(inner == 9);
  }
  enough = true;
  behind.join();
  for (const auto& count : times) CHECK(count == 1);
}

// A task in the background may wait for what its rival holds, who therefore does not wait for it.
void background_work_that_waits_is_not_waited_for() {
  std::atomic<bool> begun{false}, free{false};
  std::thread behind([&] {
    const CallScope scope;
    const InBackground background;
    parallel_for(100, [&](i64) {
      begun = true;
      free.wait(false);
    });
  });
  while (!begun) std::this_thread::yield();
  {
    const CallScope scope;
    std::atomic<int> done{0};
    parallel_for(8, [&](i64) { ++done; });
    CHECK(done == 8);
  }
  free = true;
  free.notify_all();
  behind.join();
}

// Rows that the thread brings which reads a snapshot do not wait for that thread.
void rows_come_to_a_table_whose_snapshot_this_thread_reads() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = random_ids(20000, 4), times(20000, 2);
  const std::vector<float> zeros = ones(ids.size() * kDim, 0), rows = ones(ids.size() * kDim);
  table.assign(ids.data(), ids.size(), zeros.data(), 1);
  const SnapshotStart snapshot = table.open_snapshot(0, OtherWriters::go_on);
  const std::vector<Table*> tables = {&table};
  const std::vector<u64> starts = {0}, ends = {ids.size()};
  const float no_state = 0;
  for (int round = 0; round < 3; ++round)
    move_in_several({tables, starts, ends, ids.data(), rows.data(), &no_state, times.data()});
  table.close_snapshot(snapshot.ticket);
  std::vector<float> out(ids.size() * kDim);
  table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
  for (float value : out) CHECK(value == 1);
}

}  // namespace

int main() {
  set_thread_count(4);
  everything_at_once(4);
  no_update_is_lost();
  several_tables_at_once();
  background_work_makes_way();
  background_work_that_waits_is_not_waited_for();
  rows_come_to_a_table_whose_snapshot_this_thread_reads();
  clearing_and_resizing_the_pool_meanwhile();
  return 0;
}
