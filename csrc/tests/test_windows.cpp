// Windows of several tables against plain loops: overlapping ones, several threads, bad offsets.
#include "check.h"
#include "pool.h"
#include "windows.h"

using namespace hedgerow;

namespace {

template <class Offset>
void agree(u64 size, std::vector<u64> lengths, std::vector<u64> dims) {
  std::mt19937_64 random(size);
  std::vector<double> values(size), sums(size), wanted(size, 0.0);
  for (double& value : values) value = double(random() % 64);
  std::vector<std::vector<Offset>> offsets;
  std::vector<std::vector<double>> rows;
  for (u64 t = 0; t < dims.size(); ++t) {
    rows.emplace_back(lengths[t] * dims[t]);
    offsets.emplace_back(lengths[t]);
    for (Offset& offset : offsets[t]) offset = Offset(random() % (size - dims[t] + 1));
  }
  std::vector<Windows<Offset>> tables;
  for (u64 t = 0; t < dims.size(); ++t)
    tables.push_back(
        {offsets[t].data(), lengths[t], dims[t], reinterpret_cast<u8*>(rows[t].data())});
  const std::span<const Windows<Offset>> all(tables);
  CHECK(copy_windows(all, sizeof(double), reinterpret_cast<const u8*>(values.data()), size) == -1);
  for (u64 t = 0; t < dims.size(); ++t)
    for (u64 i = 0; i < lengths[t]; ++i)
      for (u64 c = 0; c < dims[t]; ++c) {
        const double value = rows[t][i * dims[t] + c];
        CHECK(value == values[u64(offsets[t][i]) + c]);
        wanted[u64(offsets[t][i]) + c] += value * 0.5;
      }
  CHECK(add_windows(all, 0.5, sums.data(), size) == -1);
  CHECK(sums == wanted);

  for (const Offset wrong : {Offset(-1), Offset(size - dims[1] + 1)}) {
    offsets[1][3] = wrong;
    const auto before = rows[0];
    std::fill(values.begin(), values.end(), -1.0);
    const i64 at = i64(lengths[0]) + 3;
    CHECK(copy_windows(all, sizeof(double), reinterpret_cast<u8*>(values.data()), size) == at);
    CHECK(add_windows(all, 0.5, sums.data(), size) == at);
    CHECK(rows[0] == before && sums == wanted);
  }
}

}  // namespace

int main() {
  set_thread_count(3);
  agree<i64>(200, {10, 7}, {3, 200});
  agree<std::int32_t>(40000, {30000, 20000, 0}, {2, 31, 4});  // for several threads
  return 0;
}
