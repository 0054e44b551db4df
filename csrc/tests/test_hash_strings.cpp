// Known answers, and that no byte outside a string is read or counts.
#include "check.h"
#include "hash_strings.h"

using namespace hedgerow;

namespace {

void known_answers() {
  const u8* text = reinterpret_cast<const u8*>("Nobody inspects the spammish repetition");
  CHECK(xxh64(nullptr, 0, 0) == 0xef46db3751d8e999ull);
  CHECK(xxh64(text, 39, 0) == 0xfbcea83c8a378bf1ull);
}

// Vectors of the exact size: the address sanitizer sees one byte too far.
void strings_hash_as_if_alone() {
  std::mt19937_64 random(1);
  std::vector<u8> data;
  std::vector<i64> offsets{0};
  for (u64 n = 0; n < 100; ++n) {
    for (u64 i = 0; i < n; ++i) data.push_back(u8(random()));
    offsets.push_back(i64(data.size()));
  }
  data.shrink_to_fit();
  std::vector<u64> out(100);
  hash_strings(data.data(), offsets.data(), 100, 7, out.data());
  for (u64 n = 0; n < 100; ++n) {
    const std::vector<u8> alone(data.begin() + offsets[n], data.begin() + offsets[n + 1]);
    CHECK(out[n] == xxh64(alone.data(), n, 7));
  }
}

}  // namespace

int main() {
  known_answers();
  strings_hash_as_if_alone();
  return 0;
}
