// Rows in a file: as rows in memory, within their budget; full disks, forks and threads.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "check.h"
#include "pool.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 60;
constexpr u64 kBudget = u64(1) << 20;

// An emulator of user programs ignores the advice to give back pages of a file; the build says so
// by an argument.
bool pages_stay = false;

struct InFile {
  std::shared_ptr<RowFile> file;
  std::unique_ptr<Table> table;

  explicit InFile(u64 budget) {
    char name[] = "rows-XXXXXX";
    const int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK(unlink(name) == 0);
    file = std::make_shared<RowFile>(fd, ".", budget);
    table = std::make_unique<Table>(std::vector{sgd_segment(kDim, 1)}, RowForm::training,
                                    ZeroRows::store, 1, 0, Marks::none, nullptr, file);
  }
};

std::vector<float> looked_up(const Table& table, const std::vector<i64>& ids) {
  std::vector<float> out(ids.size() * kDim);
  table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::reused);
  return out;
}

struct View {
  std::vector<i64> ids, times;
  std::vector<float> rows;
};

View snapshot_of(Table& table) {
  const SnapshotStart start = table.open_snapshot(u64(1) << 30, OtherWriters::go_on);
  CHECK(start.ticket != 0);
  const u64 room = start.rows + 100;
  View view{std::vector<i64>(room), std::vector<i64>(room), std::vector<float>(room * kDim)};
  float no_state = 0;
  const SnapshotStep step = table.read_snapshot(start.ticket, room, view.ids.data(),
                                                view.rows.data(), &no_state, view.times.data());
  CHECK(step.done && step.rows == start.rows);
  table.close_snapshot(start.ticket);
  return view;
}

void same(Table& ours, Table& other, const std::vector<i64>& ids) {
  CHECK(ours.size() == other.size());
  CHECK(looked_up(ours, ids) == looked_up(other, ids));
}

void rows_are_those_of_a_table_in_memory() {
  InFile ours(kBudget), staging(kBudget);
  Table other({sgd_segment(kDim, 1)}, RowForm::training, ZeroRows::store, 1, 0);
  std::mt19937_64 random(3);
  const std::vector<i64> ids = random_ids(20000, 2);
  const float rate = 0.5;
  for (int step = 0; step < 6; ++step) {
    std::vector<i64> batch(3000);
    for (i64& id : batch) id = ids[random() % ids.size()];
    std::vector<float> grads(batch.size() * kDim);
    for (float& value : grads) value = float(random() % 1000) / 512;
    std::vector<u8> erased(batch.size());
    for (Table* table : {ours.table.get(), &other}) {
      table->apply_gradients(batch.data(), batch.size(),
                             {grads.data(), &rate, step, step, EqualIds::summed});
      table->erase(batch.data(), 500, erased.data());
      table->assign_add(batch.data() + 400, 400, grads.data(), step);
    }
    CHECK(ours.file->resident_bytes() <= kBudget);
    same(*ours.table, other, ids);
  }
  CHECK(ours.file->file_bytes() > 4 * kBudget);
  CHECK(pages_stay || ours.file->measured_bytes() <= kBudget * 5 / 4);
  const View seen = snapshot_of(*ours.table), expected = snapshot_of(other);
  CHECK(seen.ids == expected.ids && seen.times == expected.times && seen.rows == expected.rows);
  CHECK(!ours.table->exchange(other));  // one in a file, one in memory
  CHECK(ours.table->exchange(*staging.table));
  CHECK(ours.table->size() == 0 && ours.file->file_bytes() == 0);
  same(*staging.table, other, ids);
  CHECK(staging.table->clear());
  CHECK(staging.file->file_bytes() == 0 && staging.file->resident_bytes() == 0);
  staging.table->assign(ids.data(), 100, ones(100 * kDim, 7).data(), 1);
  CHECK(looked_up(*staging.table, {ids[5]}) == ones(kDim, 7));
}

// What is charged for rows in a file depends on its budget: to swap two would leave a wrong charge.
void files_of_different_budgets_do_not_swap() {
  const u64 before = memory_used();
  {
    InFile small(kBudget / 16), large(4 * kBudget);
    const std::vector<i64> ids = random_ids(5000, 8);
    const std::vector<float> rows = ones(ids.size() * kDim, 3);
    small.table->assign(ids.data(), ids.size(), rows.data(), 1);
    CHECK(!small.table->exchange(*large.table));
    CHECK(large.table->size() == 0 && looked_up(*small.table, ids) == rows);
  }
  CHECK(memory_used() == before);
}

// Whether an id has a row is in the index: no page comes to memory for it.
void rows_that_are_only_asked_for_stay_in_the_file() {
  InFile ours(kBudget);
  const std::vector<i64> ids = random_ids(20000, 9);
  ours.table->assign(ids.data(), ids.size(), ones(ids.size() * kDim, 3).data(), 1);
  const u64 resident = ours.file->resident_bytes();
  for (u64 from = 0; from < ids.size(); from += 100) {
    std::vector<u8> there(100);
    ours.table->contains(ids.data() + from, 100, there.data());
    CHECK(there == std::vector<u8>(100, 1));
    CHECK(ours.file->resident_bytes() == resident);
  }
}

void a_file_serves_one_table() {
  InFile ours(kBudget);
  try {
    Table second({sgd_segment(kDim)}, RowForm::training, ZeroRows::store, 1, 0, Marks::none,
                 nullptr, ours.file);
  } catch (const std::invalid_argument&) {
    return;
  }
  CHECK(false);
}

void a_file_that_cannot_grow_loses_nothing() {
  InFile ours(kBudget);
  const std::vector<i64> ids = random_ids(80000, 4);  // two chunks
  const std::vector<float> rows = ones(ids.size() * kDim, 3);
  ours.table->assign(ids.data(), 100, rows.data(), 1);
  const u64 before = ours.file->file_bytes();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const rlimit now{before + 4096, old.rlim_max};
  CHECK(setrlimit(RLIMIT_FSIZE, &now) == 0);
  bool refused = false;
  try {
    ours.table->assign(ids.data(), ids.size(), ones(rows.size(), 9).data(), 1);
  } catch (const NoRoomInFile& error) {
    refused = !error.rows_changed;
  }
  CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
  CHECK(refused);
  CHECK(ours.table->size() == 100 && ours.file->file_bytes() == before);
  CHECK(looked_up(*ours.table, {ids.begin(), ids.begin() + 100}) == ones(100 * kDim, 3));
  ours.table->assign(ids.data(), ids.size(), rows.data(), 1);
  CHECK(looked_up(*ours.table, ids) == rows);
}

void a_forked_child_is_refused_and_harms_nobody() {
  InFile ours(kBudget);
  const std::vector<i64> ids = random_ids(1000, 5);
  const std::vector<float> rows = ones(ids.size() * kDim, 3);
  ours.table->assign(ids.data(), ids.size(), rows.data(), 1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int refused = 0;
    const auto attempt = [&](const auto& call) {
      try {
        call();
      } catch (const UnusableRows&) {
        ++refused;
      }
    };
    attempt([&] { looked_up(*ours.table, ids); });
    attempt([&] { ours.table->assign(ids.data(), ids.size(), ones(rows.size()).data(), 1); });
    attempt([&] { ours.table->clear(); });
    attempt([&] { ours.table->open_snapshot(0, OtherWriters::go_on); });
    const std::vector<i64> ages(kAgeSlots, 1);
    attempt([&] { ours.table->evict_older(0, ages.data(), 0, 1, nullptr, nullptr); });
    CHECK(refused == 5);
    ours.table.reset();  // its parent's file stays as it is
    ours.file.reset();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(looked_up(*ours.table, ids) == rows);
}

void threads_share_a_small_budget() {
  set_thread_count(2);
  InFile ours(u64(256) << 10);
  const std::vector<i64> ids = random_ids(3000, 6);
  const std::vector<float> rows = ones(ids.size() * kDim, 2);
  ours.table->assign(ids.data(), ids.size(), rows.data(), 1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 5; ++i) ours.table->assign(ids.data(), ids.size(), rows.data(), 1);
    stop = true;
  });
  std::thread churn([&] {
    const std::vector<i64> others = random_ids(500, 7);
    std::vector<u8> erased(others.size());
    while (!stop) {
      ours.table->assign(others.data(), others.size(), rows.data(), 1);
      ours.table->erase(others.data(), others.size(), erased.data());
    }
  });
  while (!stop) {
    for (float value : looked_up(*ours.table, ids)) CHECK(value == 2);
    ours.file->measured_bytes();
  }
  writer.join();
  churn.join();
  CHECK(ours.table->size() == ids.size());
  for (float value : looked_up(*ours.table, ids)) CHECK(value == 2);
}

// Between the write of a page and its leave, others write to it: that comes back with the page.
void no_update_is_lost_while_pages_leave() {
  constexpr int kRounds = 5;
  InFile ours(0);  // all pages leave after each call, whoever uses them
  const std::vector<i64> ids = random_ids(400, 10);
  const std::vector<float> rows = ones(ids.size() * kDim);
  std::atomic<int> writing{2};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer)
    writers.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i)
        ours.table->assign_add(ids.data(), ids.size(), rows.data(), 1);
      --writing;
    });
  while (writing != 0) looked_up(*ours.table, {ids[0]});
  for (std::thread& writer : writers) writer.join();
  CHECK(looked_up(*ours.table, ids) == ones(rows.size(), 1 + 2 * kRounds));
}

}  // namespace

int main(int arguments, char**) {
  pages_stay = arguments > 1;
  rows_are_those_of_a_table_in_memory();
  files_of_different_budgets_do_not_swap();
  rows_that_are_only_asked_for_stay_in_the_file();
  a_file_serves_one_table();
  a_file_that_cannot_grow_loses_nothing();
  a_forked_child_is_refused_and_harms_nobody();
  threads_share_a_small_budget();
  no_update_is_lost_while_pages_leave();
  std::puts("row_file: ok");
}
