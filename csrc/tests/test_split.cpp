// Splits, distinct keys and fills against plain loops, over sizes of many blocks and several
// threads.
#include <algorithm>
#include <map>
#include <random>

#include "check.h"
#include "fill.h"
#include "pool.h"
#include "split.h"
#include "unique_offsets.h"

using namespace hedgerow;

namespace {

using Ints = std::vector<i64>;

struct alignas(64) Line {
  u8 bytes[64];
};

Ints random_borders(std::mt19937_64& random, u64 n, u64 rows) {
  Ints borders(rows + 1);
  for (i64& border : borders) border = i64(random() % (n + 1));
  borders.front() = 0;
  borders.back() = i64(n);
  std::sort(borders.begin(), borders.end());
  return borders;
}

void splits_join_again(u64 n, u64 splits, u64 blocks, u64 bytes) {
  std::mt19937_64 random(n + splits);
  Ints indices(n), starts(blocks * splits), sizes(splits);
  for (i64& index : indices) index = i64(random() % splits);
  std::vector<u8> rows(n * bytes);
  for (u8& byte : rows) byte = u8(random());
  std::vector<Line> again((n * bytes + 63) / 64);
  u8* const back = again.empty() ? nullptr : again.front().bytes;
  const SplitPlan plan{indices.data(), n, splits, blocks, starts.data()};
  CHECK(plan_split(plan, sizes.data()) == -1);
  std::vector<std::vector<Line>> parts;  // as tensors are: their memory begins with a line
  std::vector<u8*> at;
  for (const i64 size : sizes) parts.emplace_back((u64(size) * bytes + 63) / 64);
  for (auto& part : parts) at.push_back(part.empty() ? nullptr : part.front().bytes);
  split_rows(plan, rows.data(), bytes, at.data());
  std::vector<u64> next(splits);
  for (u64 i = 0; i < n; ++i) {
    const u64 k = u64(indices[i]);
    CHECK(std::equal(rows.begin() + i64(i * bytes), rows.begin() + i64((i + 1) * bytes),
                     at[k] + next[k]++ * bytes));
  }
  join_rows(plan, at.data(), bytes, back);
  CHECK(std::equal(rows.begin(), rows.end(), back));
}

void bad_indices_are_found() {
  for (const i64 bad : {i64(-1), i64(3), i64(u64(1) << 63)}) {
    Ints indices(1000, 2), starts(4 * 3), sizes(3);
    indices[501] = indices[999] = bad;
    CHECK(plan_split({indices.data(), 1000, 3, 4, starts.data()}, sizes.data()) == 501);
  }
}

void ragged_rows_keep_their_rows(u64 n, u64 rows, u64 splits, u64 blocks) {
  std::mt19937_64 random(n + rows);
  Ints indices(n), values(n), starts(blocks * splits), sizes(splits), cuts(splits * (rows + 1));
  for (u64 i = 0; i < n; ++i) indices[i] = i64(random() % splits), values[i] = i64(random());
  const Ints borders = random_borders(random, n, rows);
  const SplitPlan plan{indices.data(), n, splits, blocks, starts.data()};
  CHECK(plan_split(plan, sizes.data()) == -1);
  std::vector<Ints> parts, places;
  std::vector<i64*> parts_at, places_at;
  for (const i64 size : sizes) parts.emplace_back(u64(size)), places.emplace_back(u64(size));
  for (auto& part : parts) parts_at.push_back(part.data());
  for (auto& part : places) places_at.push_back(part.data());
  split_ragged(plan, values.data(), borders.data(), rows, parts_at.data(), places_at.data(),
               cuts.data());
  for (u64 k = 0; k < splits; ++k)
    for (u64 row = 0; row < rows; ++row) {
      i64 at = cuts[k * (rows + 1) + row];
      for (i64 i = borders[row]; i < borders[row + 1]; ++i)
        if (indices[u64(i)] == i64(k)) {
          CHECK(places[k][u64(at)] == i && parts[k][u64(at)] == values[u64(i)]);
          ++at;
        }
      CHECK(at == cuts[k * (rows + 1) + row + 1]);
    }
}

// All keys in one part: the buffer then holds every key's vector, and the sums count occurrences.
void keys_are_found_and_filled(u64 n, u64 rows, u64 kinds) {
  std::mt19937_64 random(n + rows);
  std::vector<u64> keys(n), distinct(n);
  for (u64& key : keys) key = ~(random() % kinds);
  const Ints borders = random_borders(random, n, rows);
  Ints dims(rows), splits(rows + 1), offsets(n), inner(n + 1);
  for (i64& dim : dims) dim = i64(random() % 6);
  const u64 found =
      unique_with_offsets({keys.data(), borders.data(), dims.data(), rows},
                          {distinct.data(), splits.data(), offsets.data(), inner.data()});
  CHECK(splits[rows] == i64(found) && inner[found] == i64(n));
  Ints part(found);
  for (u64 k = 0; k < found; ++k) part[k] = i64(k);
  std::vector<float> values;
  u64 floats = 0;
  for (u64 row = 0; row < rows; ++row) {
    floats += u64((borders[row + 1] - borders[row]) * dims[row]);
    for (i64 k = splits[row]; k < splits[row + 1]; ++k)
      values.insert(values.end(), u64(dims[row]), float(~distinct[u64(k)]));
  }
  std::vector<float> buffer(floats, -1), sums(values.size());
  const KeyPart all{part.data(), splits.data(), dims.data(), rows};
  const KeyOffsets where{offsets.data(), n, inner.data(), found};
  CHECK(check_part(all, where, floats).fault == PartFault::none);
  if (floats > 0) CHECK(check_part(all, where, floats - 1).fault == PartFault::window);
  fill_windows(all, where, reinterpret_cast<const u8*>(values.data()), sizeof(float),
               reinterpret_cast<u8*>(buffer.data()), RepeatedKeys::any_order);
  u64 at = 0;
  for (u64 row = 0; row < rows; ++row)
    for (i64 i = borders[row]; i < borders[row + 1]; ++i)
      for (i64 c = 0; c < dims[row]; ++c) CHECK(buffer[at++] == float(~keys[u64(i)]));
  sum_windows(all, where, buffer.data(), sums.data());
  u64 value = 0;
  for (u64 row = 0; row < rows; ++row)
    for (i64 k = splits[row]; k < splits[row + 1]; ++k)
      for (i64 c = 0; c < dims[row]; ++c, ++value)
        CHECK(sums[value] == values[value] * float(inner[u64(k) + 1] - inner[u64(k)]));
}

}  // namespace

int main() {
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    for (const u64 bytes : {0, 1, 4, 8, 12, 16, 32, 64, 65, 128})
      splits_join_again(5000, 10, 7, bytes);
    splits_join_again(140'000, 10, 7, 64);  // so large that it is written past the caches
    splits_join_again(0, 3, 1, 8);
    splits_join_again(40, 300, 4, 8);
    bad_indices_are_found();
    for (const u64 rows : {1, 3, 900}) {
      ragged_rows_keep_their_rows(3000, rows, 5, 8);
      ragged_rows_keep_their_rows(0, rows, 2, 1);
      keys_are_found_and_filled(20000, rows, 500);
      keys_are_found_and_filled(300, rows, 7);
      keys_are_found_and_filled(0, rows, 1);
    }
  }
  return 0;
}
