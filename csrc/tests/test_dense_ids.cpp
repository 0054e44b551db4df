// Dense ids: found by the id itself, and never anything but what the index says.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "bucket.h"
#include "check.h"
#include "dense_ids.h"
#include "isa.h"
#include "pool.h"
#include "shard_of.h"

using namespace hedgerow;

namespace {

constexpr int kDim = 16;
constexpr u64 kRange = u64(1) << 16;  // ids that share an array
constexpr u64 kArrayBytes = 4 * kRange;

std::vector<i64> ids_from(i64 first, u64 n) {
  std::vector<i64> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

int shard_of_key(u64 key) { return shard_of(SlotHash(7)(key)); }

void write(Table& table, const std::vector<i64>& ids, float more) {
  std::vector<float> rows(ids.size() * kDim);
  for (u64 i = 0; i < rows.size(); ++i) rows[i] = float(ids[i / kDim] % 1000) + more;
  table.assign(ids.data(), ids.size(), rows.data(), 1);
}

// Every id has the row that `write` gave it; with `none`, it has no row.
void check_rows(const Table& table, const std::vector<i64>& ids, float more, bool none = false) {
  std::vector<float> rows(ids.size() * kDim, -1);
  std::vector<u8> there(ids.size(), 2);
  table.lookup(ids.data(), ids.size(), Missing::zeros, 0, rows.data(), OutputMemory::reused);
  table.contains(ids.data(), ids.size(), there.data());
  for (u64 i = 0; i < ids.size(); ++i) {
    CHECK(there[i] == u8(!none));
    for (int c = 0; c < kDim; ++c)
      CHECK(rows[i * kDim + u64(c)] == (none ? 0 : float(ids[i] % 1000) + more));
  }
}

void erase(Table& table, const std::vector<i64>& ids) {
  std::vector<u8> erased(ids.size());
  CHECK(table.erase(ids.data(), ids.size(), erased.data()) == i64(ids.size()));
}

void an_array_comes_with_half_of_its_range_and_goes_with_most_of_it() {
  DenseIds dense;
  u32 rows[2], left[2];
  const auto row_of = [&](u64 key) {
    const i64 keys[2] = {i64(key), -1};  // the second is in no range
    const u64 others = dense.find(keys, 2, rows, left);
    CHECK(rows[1] == kNoRow && others >= 1 && left[others - 1] == 1);
    return rows[0];
  };
  const auto has_array = [](const DenseIds& ids, i64 key) { return ids.serves(&key, 1); };
  u64 key = kRange;
  for (; !has_array(dense, kRange); ++key) dense.insert(shard_of_key(key), key, u32(key) + 7);
  const u64 half = key - kRange;
  CHECK(!has_array(dense, 0) && !has_array(dense, -1));
  CHECK(half > kRange * 4 / 10 && half < kRange * 6 / 10);
  CHECK(dense.bytes() == kArrayBytes);
  CHECK(row_of(kRange) == kNoRow);  // came before the array
  dense.learn(kRange, u32(kRange) + 7);
  CHECK(row_of(kRange) == kRange + 7 && row_of(key - 1) == key + 6 && row_of(key) == kNoRow);
  dense.learn(3, 3);  // its range has no array
  CHECK(row_of(3) == kNoRow);
  for (u64 gone = kRange; has_array(dense, kRange); ++gone) {
    dense.erase(shard_of_key(gone), gone);
    CHECK(gone < key && row_of(gone) == kNoRow);
  }
  CHECK(dense.bytes() == 0 && row_of(key - 1) == kNoRow);
  DenseIds other;
  other.swap(dense);
  other.clear();
  for (u64 again = kRange; !has_array(other, kRange); ++again) {
    CHECK(again < key);  // counted from nothing
    other.insert(shard_of_key(again), again, 1);
  }
}

void arrays_take_sixteen_megabytes_at_most() {
  DenseIds dense;
  const i64 last = 70 * i64(kRange);
  for (u64 key = 0; key < u64(last); ++key) dense.insert(shard_of_key(key), key, u32(key));
  const i64 first = 0, beyond = last - 1;
  CHECK(dense.bytes() == 64 * kArrayBytes && dense.serves(&first, 1) && !dense.serves(&beyond, 1));
  for (u64 key = 0; key < kRange; ++key) dense.erase(shard_of_key(key), key);
  CHECK(dense.bytes() == 63 * kArrayBytes);
  for (u64 key = 0; key < kRange; ++key) dense.insert(shard_of_key(key), key, 5);
  CHECK(dense.bytes() == 64 * kArrayBytes && dense.serves(&first, 1));  // in the memory that it had
  // Ids that wander on: those they left make room.
  const u64 next = u64(last) + kRange;
  for (u64 key = 0; key < kRange; ++key) {
    dense.erase(shard_of_key(key), key);
    dense.insert(shard_of_key(next + key), next + key, 7);
  }
  const i64 newest = i64(next);
  CHECK(dense.bytes() == 63 * kArrayBytes && !dense.serves(&newest, 1));  // it came before the room
  for (u64 key = 0; key < kRange; ++key) dense.erase(shard_of_key(next + key), next + key);
  for (u64 key = 0; key < kRange; ++key) dense.insert(shard_of_key(next + key), next + key, 7);
  CHECK(dense.bytes() == 64 * kArrayBytes && dense.serves(&newest, 1));
}

void rows_are_those_of_the_index() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = ids_from(0, 2 * kRange);
  write(table, ids, 0);
  CHECK(table.memory().index_bytes > 2 * kArrayBytes);
  for (int turn = 0; turn < 2; ++turn) check_rows(table, ids, 0);  // learned, then known
  std::vector<i64> twice;
  for (u64 i = 0; i < 50000; ++i) twice.push_back(i64(i / 2));
  check_rows(table, twice, 0);
  std::vector<i64> mixed = random_ids(30000, 1);
  write(table, mixed, 0.5f);
  check_rows(table, mixed, 0.5f);
  mixed.insert(mixed.begin() + 15000, ids.begin(), ids.begin() + 15000);  // some known, some not
  std::vector<u8> there(mixed.size());
  table.contains(mixed.data(), mixed.size(), there.data());
  CHECK(std::count(there.begin(), there.end(), 1) == i64(mixed.size()));
  mixed.erase(mixed.begin() + 15000, mixed.begin() + 30000);
  check_rows(table, ids_from(2 * kRange, 5000), 0, true);
  check_rows(table, ids_from(-5000, 5000), 0, true);
  write(table, ids, 2);  // found by the write, too: nothing is born
  CHECK(table.size() == 2 * kRange + mixed.size());
  check_rows(table, ids, 2);
  std::vector<i64> by_shard = ids;  // of such the index is asked
  std::stable_sort(by_shard.begin(), by_shard.end(),
                   [](i64 a, i64 b) { return shard_of_key(u64(a)) < shard_of_key(u64(b)); });
  check_rows(table, by_shard, 2);
  const std::vector<i64> few(by_shard.begin() + 100, by_shard.begin() + 3000);
  write(table, few, 3);
  CHECK(table.size() == 2 * kRange + mixed.size());
  check_rows(table, few, 3);
}

void erased_ids_come_back_in_other_rows() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = ids_from(0, kRange);
  write(table, ids, 0);
  check_rows(table, ids, 0);
  const std::vector<i64> half(ids.begin(), ids.begin() + kRange / 2);
  erase(table, half);
  check_rows(table, half, 0, true);
  std::vector<i64> back(half.rbegin(), half.rend());
  write(table, back, 3);
  check_rows(table, half, 3);
  erase(table, ids);  // the array goes, and comes again
  check_rows(table, ids, 0, true);
  std::vector<i64> all(ids.rbegin(), ids.rend());
  write(table, all, 4);
  check_rows(table, ids, 4);
}

void cleared_and_exchanged() {
  Table first = sgd_table(kDim), second = sgd_table(kDim);
  const std::vector<i64> ids = ids_from(0, kRange);
  std::vector<i64> back(ids.rbegin(), ids.rend());
  write(first, ids, 1);
  write(second, back, 2);
  check_rows(first, ids, 1);
  check_rows(second, ids, 2);
  CHECK(first.exchange(second));
  check_rows(first, ids, 2);
  check_rows(second, ids, 1);
  CHECK(first.clear());
  check_rows(first, ids, 0, true);
  write(first, back, 5);
  check_rows(first, ids, 5);
}

void without_room_the_index_does() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = ids_from(0, kRange), few(ids.begin(), ids.begin() + 1000);
  write(table, few, 0);
  write(table, ids, 0);
  erase(table, ids);  // the table keeps room for all of them, without the array
  const u64 index_bytes = table.memory().index_bytes;
  set_memory_limit(memory_used() + 1000);
  write(table, ids, 1);
  set_memory_limit(0);
  CHECK(table.size() == kRange && table.memory().index_bytes == index_bytes);
  check_rows(table, ids, 1);
}

// Rows come and go while others look: a row is all of one write or zeros.
void beside_readers() {
  Table table = sgd_table(kDim);
  const std::vector<i64> ids = ids_from(0, kRange), odd = [&] {
    std::vector<i64> some;
    for (i64 id : ids)
      if (id % 8 != 0) some.push_back(id);
    return some;
  }();
  write(table, ids, 1);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader)
    readers.emplace_back([&] {
      std::vector<float> rows(ids.size() * kDim);
      while (!done.load()) {
        table.lookup(ids.data(), ids.size(), Missing::zeros, 0, rows.data(), OutputMemory::reused);
        for (u64 i = 0; i < ids.size(); ++i) {
          const float* row = rows.data() + i * kDim;
          const float base = float(ids[i] % 1000);
          CHECK(row[0] == base + 1 || row[0] == base + 2 || (ids[i] % 8 != 0 && row[0] == 0));
          CHECK(std::all_of(row, row + kDim, [&](float value) { return value == row[0]; }));
        }
      }
    });
  for (int turn = 0; turn < 2; ++turn) {
    erase(table, odd);
    write(table, ids, float(2 - turn));
  }
  done.store(true);
  for (std::thread& reader : readers) reader.join();
  check_rows(table, ids, 1);
}

}  // namespace

int main() {
  set_thread_count(2);
  an_array_comes_with_half_of_its_range_and_goes_with_most_of_it();
  arrays_take_sixteen_megabytes_at_most();
  for (const std::string& isa : available_isas()) {
    set_isa(isa);
    rows_are_those_of_the_index();
  }
  erased_ids_come_back_in_other_rows();
  cleared_and_exchanged();
  without_room_the_index_does();
  beside_readers();
}
