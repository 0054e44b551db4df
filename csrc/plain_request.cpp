// One pass over the fields of the few messages that a plain request has.
#include "plain_request.h"

#include <algorithm>

namespace hedgerow {
namespace {

enum Wire : u32 { kVarint = 0, kBytes = 2 };  // of 0 to 7; the others are not plain

constexpr u64 kLengthBytes = 5;  // of 31 bits: a parser refuses one that is written longer

// A field of a message: its bytes, or its number.
struct Field {
  u32 number = 0;
  Wire wire = kVarint;
  u64 value = 0;
  Span bytes;
};

// The fields of one message, in order; `broken` ends it.
class Fields {
 public:
  Fields(const u8* data, Span message)
      : data_(data), at_(message.at), end_(message.at + message.size) {}

  bool next(Field& field) {
    if (at_ >= end_ || broken_) return false;
    const u8 tag = data_[at_++];
    field.number = tag >> 3;
    field.wire = Wire(tag & 7);
    // A longer tag is a field that we do not know.
    if (tag >= 0x80 || (field.wire != kVarint && field.wire != kBytes)) return fail();
    const u64 before = at_;
    if (!varint(field.value)) return fail();
    if (field.wire == kVarint) return true;
    if (at_ - before > kLengthBytes || field.value > end_ - at_) return fail();
    field.bytes = {at_, field.value};
    at_ += field.value;
    return true;
  }

  bool broken() const { return broken_; }

 private:
  bool varint(u64& value) {
    value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      if (at_ == end_) return false;
      const u8 byte = data_[at_++];
      value |= u64(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    if (at_ == end_ || data_[at_] > 1) return false;  // the tenth byte holds the last bit
    value |= u64(data_[at_++]) << 63;
    return true;
  }

  bool fail() {
    broken_ = true;
    return false;
  }

  const u8* data_;
  u64 at_, end_;
  bool broken_ = false;
};

// Calls take(field, seen) for each field of a message, `seen` if one of its number came before.
// False once that is false, and for broken bytes.
template <class Take>
bool each(const u8* data, Span message, Take&& take) {
  Fields fields(data, message);
  Field field;
  u32 seen = 0;
  while (fields.next(field)) {
    const u32 bit = 1u << field.number;  // of 16 numbers: tags have one byte
    if (!take(field, (seen & bit) != 0)) return false;
    seen |= bit;
  }
  return !fields.broken();
}

bool is(const Field& field, u32 number, Wire wire) {
  return field.number == number && field.wire == wire;
}

bool read_version(const u8* data, Span message, std::optional<i64>& version) {
  version = 0;
  return each(data, message, [&](const Field& field, bool seen) {
    version = i64(field.value);
    return !seen && is(field, 1, kVarint);
  });
}

bool read_spec(const u8* data, Span message, PlainRequest& request) {
  return each(data, message, [&](const Field& field, bool seen) {
    if (seen) return false;
    if (is(field, 2, kBytes)) return read_version(data, field.bytes, request.version);
    if (is(field, 1, kBytes)) request.model = field.bytes;
    if (is(field, 3, kBytes)) request.signature = field.bytes;
    return is(field, 1, kBytes) || is(field, 3, kBytes);
  });
}

bool read_shape(const u8* data, Span message, PlainInput& input) {
  return each(data, message, [&](const Field& dim, bool) {
    if (!is(dim, 2, kBytes) || input.rank == PlainInput::kMostDims) return false;
    i64& size = input.dims[input.rank++];
    return each(data, dim.bytes, [&](const Field& field, bool seen) {
      size = i64(field.value);
      return !seen && is(field, 1, kVarint);
    });
  });
}

bool read_tensor(const u8* data, Span message, PlainInput& input) {
  return each(data, message, [&](const Field& field, bool seen) {
    if (seen) return false;
    if (is(field, 2, kBytes)) return read_shape(data, field.bytes, input);
    if (is(field, 1, kVarint)) input.dtype = i64(field.value);
    if (is(field, 4, kBytes)) input.content = field.bytes;
    return is(field, 1, kVarint) || is(field, 4, kBytes);
  });
}

// Of a size of 0: such a tensor has no values in any form.
bool is_empty(const PlainInput& input) {
  return std::find(input.dims.begin(), input.dims.begin() + input.rank, 0) !=
         input.dims.begin() + input.rank;
}

bool read_input(const u8* data, Span message, PlainInput& input) {
  const bool plain = each(data, message, [&](const Field& field, bool seen) {
    if (seen) return false;
    if (is(field, 1, kBytes)) input.alias = field.bytes;
    if (is(field, 2, kBytes)) return read_tensor(data, field.bytes, input);
    return is(field, 1, kBytes);
  });
  return plain && (input.content.size > 0 || is_empty(input));
}

// Our own clients put a client's name of zeros before a tensor, so that its values stand at a
// multiple of 16 bytes.
bool is_padding(const u8* data, const Field& field) {
  if (!is(field, 6, kBytes) || field.bytes.size >= 16) return false;
  const u8* from = data + field.bytes.at;
  return std::all_of(from, from + field.bytes.size, [](u8 byte) { return byte == 0; });
}

}  // namespace

std::optional<PlainRequest> read_plain_request(const u8* data, u64 n) {
  PlainRequest request;
  u64 paddings = 0;
  const bool plain = each(data, {0, n}, [&](const Field& field, bool seen) {
    if (is(field, 1, kBytes)) return !seen && read_spec(data, field.bytes, request);
    if (is_padding(data, field)) return ++paddings <= PlainRequest::kMostInputs;
    if (!is(field, 2, kBytes) || request.inputs.size() == PlainRequest::kMostInputs) return false;
    return read_input(data, field.bytes, request.inputs.emplace_back());
  });
  // Where no tensor has content, nothing says that the answer is wanted as raw buffers.
  const bool raw = request.inputs.empty() ||
                   std::any_of(request.inputs.begin(), request.inputs.end(),
                               [](const PlainInput& input) { return input.content.size > 0; });
  if (!plain || !raw) return std::nullopt;
  return request;
}

}  // namespace hedgerow
