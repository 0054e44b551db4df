// Rows by id against a plain map: dense and scattered ids, duplicates, empty lists, many threads.
#include <unordered_map>

#include "check.h"
#include "pool.h"
#include "take_rows.h"

using namespace hedgerow;

namespace {

struct Lists {
  std::vector<std::vector<u64>> ids;
  std::vector<std::vector<float>> rows;
  std::unordered_map<u64, u64> first;  // id to number

  Lists(std::mt19937_64& random, u64 lists, u64 dim, bool scattered) : ids(lists), rows(lists) {
    u64 number = 0;
    for (u64 l = 0; l < lists; ++l) {
      ids[l].resize(l % 3 == 1 ? 0 : random() % 700);
      for (u64& id : ids[l]) {
        const u64 small = random() % 900 - 300;
        id = scattered ? small * 0x9e3779b97f4a7c15ull : small;
        first.try_emplace(id, number++);
      }
      rows[l].resize(ids[l].size() * dim);
      for (float& value : rows[l]) value = float(random() % 64);
    }
  }

  std::vector<IdList> id_lists() const {
    std::vector<IdList> made;
    for (const auto& list : ids) made.push_back({list.data(), list.size()});
    return made;
  }
  std::vector<RowList> row_lists() {
    std::vector<RowList> made;
    for (u64 l = 0; l < ids.size(); ++l)
      made.push_back({reinterpret_cast<u8*>(rows[l].data()), ids[l].size()});
    return made;
  }
  const float* row(u64 number, u64 dim) const {
    u64 l = 0;
    for (; number >= ids[l].size(); ++l) number -= ids[l].size();
    return rows[l].data() + number * dim;
  }
};

std::vector<u64> some_of(const Lists& lists, u64 n, std::mt19937_64& random) {
  std::vector<u64> known;
  for (const auto& [id, number] : lists.first) known.push_back(id);
  std::vector<u64> queries(known.empty() ? 0 : n);
  for (u64& query : queries) query = known[random() % known.size()];
  return queries;
}

void agrees(u64 lists, u64 dim, u64 n, bool scattered) {
  std::mt19937_64 random(lists * 1000 + n + dim);
  Lists made(random, lists, dim, scattered);
  std::vector<u64> queries = some_of(made, n, random);
  n = queries.size();
  std::vector<i64> numbers(n);
  std::vector<float> out(n * dim);
  CHECK(find_rows(made.id_lists(), queries.data(), n, Threads::all, numbers.data()) == -1);
  for (u64 i = 0; i < n; ++i) CHECK(u64(numbers[i]) == made.first.at(queries[i]));
  copy_rows(made.row_lists(), dim * sizeof(float), numbers.data(), n, Threads::all,
            reinterpret_cast<u8*>(out.data()));
  for (u64 i = 0; i < n; ++i)
    for (u64 c = 0; c < dim; ++c) CHECK(out[i * dim + c] == made.row(u64(numbers[i]), dim)[c]);

  std::vector<std::vector<float>> sums;
  for (const auto& list : made.rows) sums.emplace_back(list.size(), 0.0f);
  made.rows.swap(sums);
  for (u64 i = 0; i < n; ++i)
    for (u64 c = 0; c < dim; ++c)
      const_cast<float*>(made.row(u64(numbers[i]), dim))[c] += out[i * dim + c];
  made.rows.swap(sums);
  add_rows<float>(made.row_lists(), dim, numbers.data(), n, Threads::all, out.data());
  CHECK(made.rows == sums);

  if (n == 0) return;
  queries[n / 2] = queries[n - 1] = 5000;  // outside the dense range, and not scattered either
  CHECK(find_rows(made.id_lists(), queries.data(), n, Threads::all, numbers.data()) == i64(n / 2));
}

}  // namespace

int main() {
  set_thread_count(3);
  for (const bool scattered : {false, true})
    for (const u64 lists : {1, 3, 40})
      for (const u64 dim : {1, 3, 16})
        for (const u64 n : {0, 1, 2047, 9000}) agrees(lists, dim, n, scattered);
  // Enough for several threads: of the copy and the sums, then of the search.
  agrees(40, 64, 30000, true);
  agrees(3, 1, 600000, true);
  return 0;
}
