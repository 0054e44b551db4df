// Rows for messages lie where offsets and counts say, and offsets and counts of any size are read
// within the message.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "check.h"
#include "message_rows.h"

using namespace hedgerow;

namespace {

constexpr int kDims[] = {1, 3, 8};
constexpr u64 kIds = 200;

template <class Body>
bool refuses(const Body& body) {
  try {
    body();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void fill(Table& table) {
  const u64 dim = u64(table.layout().dim);
  std::vector<i64> ids(kIds);
  std::vector<float> rows(kIds * dim);
  for (u64 i = 0; i < kIds; ++i) {
    ids[i] = i64(i);
    for (u64 c = 0; c < dim; ++c) rows[i * dim + c] = float(i * 10 + c);
  }
  table.assign(ids.data(), kIds, rows.data(), 1);
}

float expected(i64 id, u64 column) { return u64(id) < kIds ? float(u64(id) * 10 + column) : 0.0f; }

// Mostly sizes that nearly fit, sometimes sizes whose products wrap.
u64 some_size(std::mt19937_64& random, u64 most) {
  switch (random() % 8) {
    case 0:
      return random();
    case 1:
      return ~u64(0) - random() % 16;
    case 2:
      return (u64(1) << (56 + random() % 8)) + random() % 4;
    default:
      return random() % (most + 2);
  }
}

bool fits(u64 size, u64 start, u64 count, u64 item_bytes) {
  return u128(start) + u128(count) * item_bytes <= size;
}

void lies_within_agrees_with_wide_numbers() {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const u64 size = random() % 100, start = some_size(random, 100), count = some_size(random, 30);
    const u64 item_bytes = 1 + random() % 16;
    CHECK(lies_within(size, start, count, item_bytes) == fits(size, start, count, item_bytes));
  }
}

// A message of ids at any byte, in memory of its exact size.
void lookups_read_what_lies_in_the_message() {
  std::mt19937_64 random(2);
  Table first = sgd_table(kDims[0]), second = sgd_table(kDims[1]);
  fill(first);
  fill(second);
  for (int round = 0; round < 3000; ++round) {
    const u64 size = random() % 200, start = some_size(random, size);
    const std::vector<u64> counts = {some_size(random, size / 8), some_size(random, size / 16)};
    std::vector<u8> message(size);
    const u128 ids = u128(counts[0]) + counts[1];
    const bool good = u128(start) + ids * sizeof(i64) <= size;
    std::vector<i64> keys;
    for (u64 i = 0; good && i < u64(ids); ++i) {
      keys.push_back(i64(random() % (2 * kIds)));
      std::memcpy(message.data() + start + i * sizeof(i64), &keys.back(), sizeof(i64));
    }
    const auto look_up = [&] {
      const MessageLookup lookup({&first, &second}, message, start, counts);
      std::vector<u8> out(lookup.row_bytes() + 1);
      lookup.read(out.data() + 1);
      u64 at = 1;
      for (u64 i = 0; i < keys.size(); ++i) {
        for (u64 c = 0; c < u64(i < counts[0] ? kDims[0] : kDims[1]); ++c, at += sizeof(float)) {
          float value;
          std::memcpy(&value, out.data() + at, sizeof(float));
          CHECK(value == expected(keys[i], c));
        }
      }
      CHECK(at == out.size());
    };
    CHECK(refuses(look_up) == !good);
  }
}

void assignments_read_what_lies_in_the_message() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1000; ++round) {
    const int dim = kDims[random() % 3];
    const u64 row_bytes = u64(dim) * sizeof(float), size = random() % 400;
    Table table = sgd_table(dim);
    std::vector<u8> message(size);
    AssignedPart part{
        &table, some_size(random, size),      some_size(random, size / 12), some_size(random, size),
        7,      NotFiniteRows::reject_message};
    const bool good = fits(size, part.ids_from, part.count, sizeof(i64)) &&
                      fits(size, part.rows_from, part.count, row_bytes);
    const bool aligned = part.ids_from % 8 == 0 && part.rows_from % 4 == 0;
    bool done = false;
    CHECK(refuses([&] { done = assign_message(message, {&part, 1}); }) == !good);
    CHECK(done == (good && aligned));
    CHECK(table.size() == (done && part.count != 0 ? 1 : 0));  // all ids are 0
  }
}

void rows_that_are_not_finite_are_left_out_or_refuse_the_message() {
  Table table = sgd_table(1);
  const i64 ids[2] = {1, 2};
  const float rows[2] = {NAN, 2.0f};
  std::vector<u8> message(24);
  std::memcpy(message.data(), ids, 16);
  std::memcpy(message.data() + 16, rows, 8);
  AssignedPart part{&table, 0, 2, 16, 7, NotFiniteRows::reject_message};
  CHECK(!assign_message(message, {&part, 1}) && table.size() == 0);
  part.not_finite = NotFiniteRows::leave_out;
  CHECK(assign_message(message, {&part, 1}) && table.size() == 1);
  part.table = nullptr;
  CHECK(refuses([&] { assign_message(message, {&part, 1}); }));
}

void written_rows_are_read_back() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    Table from = sgd_table(kDims[round % 3]), to = sgd_table(kDims[round % 3]);
    fill(from);
    const u64 count = random() % kIds;
    std::vector<i64> ids(count);
    for (u64 i = 0; i < count; ++i) ids[i] = i64(i);
    const bool missing = count != 0 && random() % 4 == 0;
    if (missing) ids[random() % count] = 1 << 20;
    const std::vector<u8> before_ids(8 * (random() % 3)), before_rows(random() % 8);
    const RowsMessage message({{&from, ids.data(), count, before_ids, before_rows}});
    std::vector<u8> out(message.size());
    CHECK(message.write(0, out.data()) == !missing);
    if (missing) continue;
    const u64 rows_from = before_ids.size() + count * sizeof(i64) + before_rows.size();
    const AssignedPart part{&to, before_ids.size(), count, rows_from, 1, NotFiniteRows::leave_out};
    const bool aligned = rows_from % 4 == 0;
    CHECK(assign_message(out, {&part, 1}) == aligned);
    if (aligned) CHECK(to.size() == count);
    const MessageLookup lookup({&to}, out, before_ids.size(), {count});
    std::vector<u8> again(lookup.row_bytes());
    lookup.read(again.data());
    if (aligned) CHECK(std::equal(again.begin(), again.end(), out.begin() + i64(rows_from)));
  }
  Table table = sgd_table(8);
  for (const u64 count : {~u64(0), u64(1) << 58, u64(1) << 60})
    CHECK(refuses([&] { RowsMessage({{&table, nullptr, count, {}, {}}}); }));
}

}  // namespace

int main() {
  lies_within_agrees_with_wide_numbers();
  lookups_read_what_lies_in_the_message();
  assignments_read_what_lies_in_the_message();
  rows_that_are_not_finite_are_left_out_or_refuse_the_message();
  written_rows_are_read_back();
  return 0;
}
