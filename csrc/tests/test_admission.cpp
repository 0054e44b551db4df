// Admission from many threads: a filter shared by two tables, dumped and restored meanwhile, and a
// filter that runs out of memory.
#include <atomic>
#include <thread>

#include "admission.h"
#include "check.h"

using namespace hedgerow;

namespace {

std::shared_ptr<Admission> count_rule(std::shared_ptr<SlidingFilter> filter, u64 table, int n) {
  return std::make_shared<CountAdmission>(std::move(filter), table,
                                          PerSlot(n, std::vector<std::pair<u32, double>>{}));
}

void tables_share_a_filter() {
  const auto filter = std::make_shared<SlidingFilter>(SlidingFilter::Settings{60000, 7, 1, 255});
  Table first({sgd_segment(3)}, RowForm::training, ZeroRows::store, 1, 0, Marks::none,
              count_rule(filter, 1, 3));
  Table second({sgd_segment(3)}, RowForm::training, ZeroRows::store, 1, 0, Marks::none,
               count_rule(filter, 2, 5));
  const std::vector<i64> ids = random_ids(5000, 3);
  const std::vector<float> grads = ones(ids.size() * 3);
  const float rate = 1;
  std::atomic<bool> stop = false;
  std::thread dumps([&] {
    SlidingFilter other({60000, 7, 1, 255});
    std::vector<u8> room;
    while (!stop) {
      const SlidingFilter::State state = filter->dump(room.size(), room.data());
      if (state.bytes() > room.size()) {
        room.resize(state.bytes());
      } else {
        other.restore(state, room.data(), state.bytes());
      }
    }
  });
  std::atomic<i64> refused[2] = {0, 0};
  const auto push = [&](Table& table, int number, EqualIds each) {
    for (int i = 0; i < 6; ++i)
      refused[number] +=
          table.apply_gradients(ids.data(), ids.size(), {grads.data(), &rate, 0, 1, each}).refused;
  };
  std::vector<std::thread> workers;
  for (const EqualIds each : {EqualIds::summed, EqualIds::one_step_each}) {
    workers.emplace_back([&, each] { push(first, 0, each); });
    workers.emplace_back([&, each] { push(second, 1, each); });
  }
  for (std::thread& worker : workers) worker.join();
  stop = true;
  dumps.join();
  CHECK(first.size() == ids.size() && second.size() == ids.size());
  CHECK(refused[0] == 3 * i64(ids.size()) && refused[1] == 5 * i64(ids.size()));
}

// The window slides over all its arrays while they grow and turn into small cells.
void a_window_slides() {
  SlidingFilter filter({3000, 5, 9, 15});
  const std::vector<i64> ids = random_ids(40000, 4);
  std::vector<u8> before(ids.size());
  for (int pass = 0; pass < 2; ++pass) {
    filter.add_many(7, ids.data(), nullptr, ids.size(), before.data());
    for (u8 count : before) CHECK(count == 0);
  }
  const std::vector<i64> counts(100, 9);
  filter.add_many(7, ids.data(), counts.data(), 100, before.data());
  filter.add_many(7, ids.data(), counts.data(), 100, before.data());
  for (int i = 0; i < 100; ++i) CHECK(before[u64(i)] == 9);
  filter.count_many(7, ids.data(), 100, before.data());
  for (int i = 0; i < 100; ++i) CHECK(before[u64(i)] == 15);
}

void a_filter_out_of_memory_leaves_the_table_as_it_was() {
  const auto filter = std::make_shared<SlidingFilter>(SlidingFilter::Settings{1 << 20, 7, 1, 255});
  Table table({sgd_segment(2)}, RowForm::training, ZeroRows::store, 1, 0, Marks::none,
              count_rule(filter, 1, 1));
  const std::vector<i64> ids = random_ids(50000, 5);
  const std::vector<float> rows = ones(ids.size() * 2);
  set_memory_limit(memory_used() + 100000);
  bool failed = false;
  try {
    table.assign(ids.data(), ids.size(), rows.data(), 1);
  } catch (const OutOfMemory& error) {
    failed = !error.rows_changed;
  }
  set_memory_limit(0);
  CHECK(failed && table.size() == 0);
  table.assign(ids.data(), ids.size(), rows.data(), 1);
  CHECK(table.assign(ids.data(), ids.size(), rows.data(), 1).refused == 0);
  CHECK(table.size() == ids.size());
}

void chances_do_not_depend_on_other_ids() {
  ChanceAdmission rule(ChanceForm::unequal, 3,
                       PerSlot(4, std::vector<std::pair<u32, double>>{{1, 0}}));
  const std::vector<i64> ids = random_ids(1000, 6);
  std::vector<u8> all(ids.size()), one(1);
  rule.ask_each(ids.data(), nullptr, ids.size(), 5, all.data());
  for (u64 i = 0; i < ids.size(); ++i) {
    rule.ask_each(&ids[i], nullptr, 1, 5, one.data());
    CHECK(one[0] == all[i]);
  }
}

}  // namespace

int main() {
  tables_share_a_filter();
  a_window_slides();
  a_filter_out_of_memory_leaves_the_table_as_it_was();
  chances_do_not_depend_on_other_ids();
  return 0;
}
