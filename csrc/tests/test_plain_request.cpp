// A plain request is read, and bytes of any kind are read within their end.
#include <string>

#include "check.h"
#include "plain_request.h"

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

// Vectors of the exact size: the address sanitizer sees one byte too far.
std::optional<PlainRequest> read(const std::string& bytes) {
  const std::vector<u8> exact(bytes.begin(), bytes.end());
  return read_plain_request(exact.data(), exact.size());
}

std::string told(const std::string& data, Span span) { return data.substr(span.at, span.size); }

void a_plain_request_is_read() {
  const std::string data = request();
  const auto found = read(data);
  CHECK(found.has_value());
  CHECK(told(data, found->model) == "ctr");
  CHECK(told(data, found->signature) == "lookup");
  CHECK(found->version == 5);
  CHECK(found->inputs.size() == 1);
  const PlainInput& input = found->inputs[0];
  CHECK(told(data, input.alias) == "id");
  CHECK(input.dtype == 9);
  CHECK(input.rank == 2 && input.dims[0] == 2 && input.dims[1] == 0);
  CHECK(told(data, input.content) == "sixteen bytes ..");
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

}  // namespace

int main() {
  a_plain_request_is_read();
  fields_that_come_twice_or_are_unknown_are_left();
  a_tensor_without_values_is_read_beside_another();
  no_byte_behind_the_end_is_read();
  return 0;
}
