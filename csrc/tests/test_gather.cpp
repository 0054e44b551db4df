// The gather on every instruction set and several threads: the right rows, and nothing beyond.
#include "check.h"
#include "gather.h"
#include "isa.h"
#include "pool.h"

using namespace hedgerow;

namespace {

// Vectors of the exact size: the address sanitizer sees one float too far.
void rows_by_number(u64 rows, u64 n, u64 dim) {
  std::mt19937_64 random(n + dim);
  std::vector<float> source(rows * dim), out(n * dim);
  for (u64 i = 0; i < source.size(); ++i) source[i] = float(i);
  std::vector<i64> numbers(n);
  for (i64& number : numbers) number = i64(random() % rows);
  if (n > 1) numbers[0] = 0, numbers[n - 1] = i64(rows) - 1;
  gather(source.data(), numbers.data(), n, dim, out.data());
  for (u64 i = 0; i < out.size(); ++i)
    CHECK(out[i] == source[u64(numbers[i / dim]) * dim + i % dim]);
}

}  // namespace

int main() {
  set_thread_count(3);
  for (const std::string& isa : available_isas()) {
    set_isa(isa);
    for (const u64 dim : {1, 3, 16, 64, 100})
      for (const u64 n : {0, 1, 31, 33, 2048, 10000}) rows_by_number(500, n, dim);
  }
  return 0;
}
