// Lookups in a table whose rows lie far apart: in large groups, and in two passes where the call is
// large. They give what small calls give, on any number of threads, while writers come in between.
#include <atomic>
#include <thread>

#include "check.h"
#include "pool.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 16;
constexpr u64 kRows = 1'450'000;                 // of 192 bytes: more than 256 MiB
constexpr u64 kDense = 200'000;                  // ids from 0 on, which have arrays
constexpr u64 kTwoPasses = (u64(1) << 18) + 77;  // ids of a call
constexpr u64 kSmallCall = 1000;

// Adam, for its state: the rows are short to read and large to hold.
SegmentSpec adam_segment() {
  SegmentSpec spec = sgd_segment(kDim);
  spec.rule = "adam";
  const Rule& rule = rule_named(spec.rule);
  spec.settings.assign(u64(rule.settings), 0.5);
  spec.initial_state.assign(u64(rule.state_floats(kDim)), 0.0f);
  return spec;
}

i64 id_of(u64 number) {
  return number < kDense ? i64(number) : i64(number * 0x9e3779b97f4a7c15ull);
}

// What the row of a number holds in every column.
float value_of(u64 number) { return float(number % 65521) + 1; }

void fill(Table& table) {
  constexpr u64 kCall = 50'000;
  std::vector<i64> ids(kCall);
  std::vector<float> rows(kCall * kDim);
  for (u64 start = 0; start < kRows; start += kCall) {
    for (u64 i = 0; i < kCall; ++i) {
      ids[i] = id_of(start + i);
      std::fill_n(rows.data() + i * kDim, kDim, value_of(start + i));
    }
    table.assign(ids.data(), kCall, rows.data(), 7);
  }
}

// Numbers of rows, some of them absent, some several times in a row.
std::vector<u64> some_numbers(u64 n, bool runs) {
  std::mt19937_64 random(n);
  std::vector<u64> numbers(n);
  for (u64 i = 0; i < n; ++i) {
    const bool again = runs && i > 0 && random() % 3 == 0;
    numbers[i] = again ? numbers[i - 1] : random() % (kRows + kRows / 8);
  }
  return numbers;
}

std::vector<i64> ids_of(const std::vector<u64>& numbers) {
  std::vector<i64> ids;
  for (u64 number : numbers) ids.push_back(id_of(number));
  return ids;
}

struct Read {
  std::vector<float> rows;
  std::vector<u8> found;
  std::vector<u32> numbers;
  explicit Read(u64 n) : rows(n * kDim, -1.0f), found(n, 9), numbers(n, 9) {}
  bool operator==(const Read&) const = default;
};

Read read(const Table& table, const std::vector<i64>& ids, u64 call) {
  Read read(ids.size());
  for (u64 from = 0; from < ids.size(); from += call)
    table.lookup(ids.data() + from, std::min(call, ids.size() - from), Missing::zeros, 0,
                 read.rows.data() + from * kDim, OutputMemory::reused, read.found.data() + from,
                 read.numbers.data() + from);
  return read;
}

void large_calls_give_what_small_ones_give(const Table& table) {
  for (const bool runs : {false, true}) {
    for (const u64 n : {u64(2048), u64(5003), kTwoPasses}) {
      const std::vector<u64> numbers = some_numbers(n, runs);
      const std::vector<i64> ids = ids_of(numbers);
      set_thread_count(1);
      const Read small = read(table, ids, kSmallCall);
      for (u64 i = 0; i < n; ++i) {
        CHECK(small.found[i] == (numbers[i] < kRows));
        CHECK(small.rows[i * kDim] == (numbers[i] < kRows ? value_of(numbers[i]) : 0.0f));
      }
      for (const std::string& isa : available_isas()) {
        set_isa(isa);
        for (const int threads : {1, 3}) {
          set_thread_count(threads);
          CHECK(read(table, ids, n) == small);
        }
      }
      set_isa("fastest");
    }
  }
}

void entries_and_contains_agree(const Table& table) {
  const std::vector<u64> numbers = some_numbers(kTwoPasses, false);
  const std::vector<i64> ids = ids_of(numbers);
  const u64 n = ids.size();
  std::vector<u8> found(n), contained(n);
  std::vector<float> rows(n * kDim), states(n * 2 * kDim + 2 * n);
  std::vector<i64> times(n);
  table.entries(ids.data(), n, found.data(), rows.data(), states.data(), times.data());
  table.contains(ids.data(), n, contained.data());
  CHECK(found == contained);
  for (u64 i = 0; i < n; ++i) {
    const bool there = numbers[i] < kRows;
    CHECK(bool(found[i]) == there && times[i] == (there ? 7 : 0));
    CHECK(rows[i * kDim + kDim - 1] == (there ? value_of(numbers[i]) : 0.0f));
  }
}

// Each run of equal ids is searched once, in one pass or two.
void ids_are_searched_once(const Table& table) {
  const std::vector<i64> ids = ids_of(some_numbers(kTwoPasses, false));
  const u64 before = table.searched();
  read(table, ids, ids.size());
  CHECK(table.searched() - before == ids.size());
}

// Keys come and go between the passes and within them, so that rows are used for other keys. A
// reader sees whole rows, and those of the ids that it asked for.
void writers_in_between(Table& table) {
  constexpr u64 kMoving = 3000;
  std::vector<i64> moving;
  for (u64 i = 0; i < kMoving; ++i) moving.push_back(id_of(kRows + i));
  const std::vector<float> marks(kMoving * kDim, -5.0f);
  std::atomic<bool> done{false};
  std::vector<u8> erased(kMoving);
  std::thread writer([&] {
    while (!done) {
      table.assign(moving.data(), kMoving, marks.data(), 8);
      table.erase(moving.data(), kMoving, erased.data());
    }
  });
  std::vector<u64> numbers = some_numbers(kTwoPasses, false);
  for (u64 i = 0; i < numbers.size(); i += 16) numbers[i] = kRows + i % kMoving;
  const std::vector<i64> ids = ids_of(numbers);
  set_thread_count(2);
  for (int round = 0; round < 6; ++round) {
    const Read seen = read(table, ids, ids.size());
    for (u64 i = 0; i < numbers.size(); ++i) {
      const float* const row = seen.rows.data() + i * kDim;
      for (int c = 1; c < kDim; ++c) CHECK(row[c] == row[0]);
      if (numbers[i] < kRows) {
        CHECK(row[0] == value_of(numbers[i]));
      } else {
        CHECK(row[0] == 0.0f || (row[0] == -5.0f && numbers[i] < kRows + kMoving));
      }
    }
  }
  done = true;
  writer.join();
}

}  // namespace

int main() {
  set_thread_count(2);
  Table table({adam_segment()}, RowForm::training, ZeroRows::store, 1, 0);
  fill(table);
  CHECK(table.size() == kRows);
  CHECK(kRows * u64(table.layout().stride) > u64(256) << 20);
  large_calls_give_what_small_ones_give(table);
  entries_and_contains_agree(table);
  ids_are_searched_once(table);
  writers_in_between(table);
  return 0;
}
