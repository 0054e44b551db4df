// A plain request is read, and bytes of any kind are read within their end.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "plain_request.h"
#include "plain_request_property.h"

using namespace hedgerow;

namespace {

std::string field(int number, const std::string& bytes) {
  return std::string{char(number << 3 | 2), char(bytes.size())} + bytes;
}

std::string request() {
  const std::string version = field(2, {8, 5});
  const std::string spec = field(1, field(1, "ctr") + version + field(3, "lookup"));
  const std::string shape = field(2, field(2, {8, 2}) + field(2, ""));
  const std::string tensor = std::string{8, 9} + shape + field(4, "sixteen bytes ..");
  return spec + field(2, field(1, "id") + field(2, tensor));
}

std::optional<PlainRequest> read(const std::string& bytes) {
  return read_any_bytes(reinterpret_cast<const u8*>(bytes.data()), bytes.size());
}

std::string text_at(const std::string& data, Span span) { return data.substr(span.at, span.size); }

void a_plain_request_is_read() {
  const std::string data = request();
  const auto found = read(data);
  CHECK(found.has_value());
  CHECK(text_at(data, found->model) == "ctr");
  CHECK(text_at(data, found->signature) == "lookup");
  CHECK(found->version == 5);
  CHECK(found->inputs.size() == 1);
  const PlainInput& input = found->inputs[0];
  CHECK(text_at(data, input.alias) == "id");
  CHECK(input.dtype == 9);
  CHECK(input.rank == 2 && input.dims[0] == 2 && input.dims[1] == 0);
  CHECK(text_at(data, input.content) == "sixteen bytes ..");
}

void fields_that_come_twice_or_are_unknown_are_left() {
  const std::string data = request();
  CHECK(!read(data + field(1, "")));
  CHECK(!read(data + field(3, "y")));
  CHECK(!read(std::string{0}));
  CHECK(read(data + field(6, "") + field(6, std::string(15, '\0'))).has_value());
  CHECK(!read(data + field(6, std::string(16, '\0'))) && !read(data + field(6, "me")));
  CHECK(!read(field(1, field(4, "label"))));
  CHECK(read("")->inputs.empty());
}

void a_tensor_without_values_is_read_beside_another() {
  const std::string none = field(2, field(1, "no") + field(2, field(2, field(2, ""))));
  const auto found = read(request() + none);
  CHECK(found.has_value() && found->inputs.size() == 2);
  CHECK(found->inputs[1].rank == 1 && found->inputs[1].content.size == 0);
  CHECK(!read(none));
  CHECK(!read(request() + field(2, field(1, "no") + field(2, field(2, field(2, {8, 1}))))));
  CHECK(!read(request() + field(2, field(1, "no"))));
}

void no_byte_behind_the_end_is_read() {
  const std::string data = request();
  std::mt19937_64 random(1);
  for (u64 n = 0; n <= data.size(); ++n) read(data.substr(0, n));
  for (int i = 0; i < 20000; ++i) {
    std::string spoilt = data;
    for (u64 changes = random() % 4; changes-- > 0;)
      spoilt[random() % spoilt.size()] = char(random());
    const auto found = read(spoilt);
    if (!found) continue;
    for (const PlainInput& input : found->inputs) {
      CHECK(input.alias.at + input.alias.size <= spoilt.size());
      CHECK(input.content.at + input.content.size <= spoilt.size());
    }
  }
}

std::string varint(u64 value) {
  std::string made;
  for (; value >= 0x80; value >>= 7) made += char(value | 0x80);
  return made + char(value);
}

std::string long_field(int number, const std::string& bytes) {
  return char(number << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string number_field(int number, u64 value) { return char(number << 3) + varint(value); }

std::string some_bytes(std::mt19937_64& random, u64 most) {
  std::string made(random() % (most + 1), char(0));
  for (char& byte : made) byte = char(random());
  return made;
}

// What a client would send, and what must be read from it.
struct Given {
  struct Input {
    std::string alias;
    u64 dtype;
    std::vector<u64> dims;
    std::string content;
  };
  std::string model, signature;
  std::optional<u64> version;
  std::vector<Input> inputs;
};

u64 some_number(std::mt19937_64& random) { return random() >> (random() % 64); }

Given some_request(std::mt19937_64& random) {
  Given given{some_bytes(random, 200), some_bytes(random, 200), std::nullopt, {}};
  if (random() % 2 == 0) given.version = some_number(random);
  for (u64 n = random() % 4; n > 0; --n) {
    Given::Input input{some_bytes(random, 20), some_number(random), {}, some_bytes(random, 300)};
    input.content += 'x';  // one without content is another message
    for (u64 dims = random() % (PlainInput::kMostDims + 1); dims > 0; --dims)
      input.dims.push_back(some_number(random));
    given.inputs.push_back(input);
  }
  return given;
}

// The fields of each message in any order, with padding between inputs.
std::string encoded(const Given& given, std::mt19937_64& random) {
  const auto joined = [&](std::vector<std::string> parts) {
    std::shuffle(parts.begin(), parts.end(), random);
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  };
  std::vector<std::string> spec = {long_field(1, given.model), long_field(3, given.signature)};
  if (given.version) spec.push_back(long_field(2, number_field(1, *given.version)));
  std::string all = long_field(1, joined(spec));
  for (const Given::Input& input : given.inputs) {
    std::string shape;
    for (const u64 dim : input.dims) shape += long_field(2, number_field(1, dim));
    const std::string tensor =
        joined({number_field(1, input.dtype), long_field(2, shape), long_field(4, input.content)});
    if (random() % 2 == 0) all += long_field(6, std::string(random() % 16, char(0)));
    all += long_field(2, joined({long_field(1, input.alias), long_field(2, tensor)}));
  }
  return all;
}

void requests_are_read_as_they_were_made() {
  std::mt19937_64 random(2);
  for (int round = 0; round < 5000; ++round) {
    const Given given = some_request(random);
    const std::string data = encoded(given, random);
    const auto found = read(data);
    CHECK(found.has_value());
    CHECK(text_at(data, found->model) == given.model);
    CHECK(text_at(data, found->signature) == given.signature);
    CHECK(found->version.has_value() == given.version.has_value());
    CHECK(!given.version || u64(*found->version) == *given.version);
    CHECK(found->inputs.size() == given.inputs.size());
    for (u64 i = 0; i < given.inputs.size(); ++i) {
      const PlainInput& input = found->inputs[i];
      const Given::Input& wanted = given.inputs[i];
      CHECK(text_at(data, input.alias) == wanted.alias && u64(input.dtype) == wanted.dtype);
      CHECK(text_at(data, input.content) == wanted.content);
      CHECK(u64(input.rank) == wanted.dims.size());
      for (u64 d = 0; d < wanted.dims.size(); ++d) CHECK(u64(input.dims[d]) == wanted.dims[d]);
    }
  }
}

// Spoils a message as a fuzzer does: bytes change, go, come, or come twice, and lengths lie.
std::string spoilt(std::string data, std::mt19937_64& random) {
  constexpr unsigned char kTelling[] = {0x00, 0x01, 0x08, 0x0a, 0x12, 0x1a, 0x22,
                                        0x32, 0x7f, 0x80, 0xff, 0xfe, 0x10};
  for (u64 changes = 1 + random() % 6; changes-- > 0 && !data.empty();) {
    const u64 at = random() % data.size(), n = random() % 12;
    switch (random() % 5) {
      case 0:
        data[at] = char(random());
        break;
      case 1:
        data[at] = char(kTelling[random() % sizeof(kTelling)]);
        break;
      case 2:
        data.erase(at, n);
        break;
      case 3:
        data.insert(at, data.substr(random() % data.size(), n));
        break;
      default:
        data.replace(at, 1, varint(random() >> (random() % 64)));
    }
  }
  return data;
}

void bytes_of_any_kind_are_read_within_their_end() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const std::string data = encoded(some_request(random), random);
    for (int i = 0; i < 20; ++i) read(spoilt(data, random));
    read(data.substr(0, random() % (data.size() + 1)));
    read(some_bytes(random, 64));
  }
}

}  // namespace

int main() {
  a_plain_request_is_read();
  fields_that_come_twice_or_are_unknown_are_left();
  a_tensor_without_values_is_read_beside_another();
  no_byte_behind_the_end_is_read();
  requests_are_read_as_they_were_made();
  bytes_of_any_kind_are_read_within_their_end();
  return 0;
}
