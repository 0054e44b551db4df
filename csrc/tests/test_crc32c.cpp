// Both forms of the checksum: known answers, and agreement at every length and alignment.
#include "check.h"
#include "crc32c.h"

using namespace hedgerow;

namespace {

void known_answers() {
  const u8* digits = reinterpret_cast<const u8*>("123456789");
  const std::vector<u8> zeros(32, 0), ones_(32, 0xff);
  for (const auto crc : {&crc32c, &crc32c_by_table}) {
    CHECK(crc(nullptr, 0, 0) == 0);
    CHECK(crc(digits, 9, 0) == 0xe3069283u);
    CHECK(crc(digits + 4, 5, crc(digits, 4, 0)) == 0xe3069283u);
    CHECK(crc(zeros.data(), 32, 0) == 0x8a9136aau);
    CHECK(crc(ones_.data(), 32, 0) == 0x62a8ab43u);
  }
}

// Vectors of the exact size: the address sanitizer sees one byte too far.
void both_forms_agree() {
  std::mt19937_64 random(1);
  for (u64 n = 0; n < 200; ++n)
    for (u64 start = 0; start < 8 && start <= n; ++start) {
      std::vector<u8> data(n);
      for (u8& byte : data) byte = u8(random());
      const u32 seed = u32(random());
      CHECK(crc32c(data.data() + start, n - start, seed) ==
            crc32c_by_table(data.data() + start, n - start, seed));
    }
}

}  // namespace

int main() {
  known_answers();
  both_forms_agree();
  return 0;
}
