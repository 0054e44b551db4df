// Reads a PredictRequest whose tensors are plain buffers, as most clients send them, without
// copying a value. Whoever gets nothing asks a real parser.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "bits.h"

namespace hedgerow {

// Bytes of the message.
struct Span {
  u64 at = 0;
  u64 size = 0;
};

struct PlainInput {
  static constexpr int kMostDims = 8;

  Span alias;
  i64 dtype = 0;
  int rank = 0;
  std::array<i64, kMostDims> dims{};
  Span content;
};

struct PlainRequest {
  static constexpr u64 kMostInputs = 256;  // and paddings: the number of fields is bounded, too

  Span model;
  std::optional<i64> version;
  Span signature;
  std::vector<PlainInput> inputs;
};

// Nothing for a message with a field that is not told above (but padding), with one that comes
// twice, with a tensor that has sizes and no content, without content at all, or with broken bytes.
std::optional<PlainRequest> read_plain_request(const u8* data, u64 n);

}  // namespace hedgerow
