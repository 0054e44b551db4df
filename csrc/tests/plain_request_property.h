// What the parser of plain requests promises for bytes of any kind.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "check.h"
#include "plain_request.h"

namespace hedgerow {

inline void check_within(const Span& span, u64 size) {
  CHECK(span.at <= size && span.size <= size - span.at);
}

// Reads a copy that ends where its memory does: a sanitizer sees a byte read behind the end.
inline std::optional<PlainRequest> read_any_bytes(const u8* data, u64 n) {
  const auto copy = std::make_unique_for_overwrite<u8[]>(n);
  std::copy_n(data, n, copy.get());
  auto found = read_plain_request(copy.get(), n);
  if (!found) return found;
  check_within(found->model, n);
  check_within(found->signature, n);
  CHECK(found->inputs.size() <= PlainRequest::kMostInputs);
  for (const PlainInput& input : found->inputs) {
    check_within(input.alias, n);
    check_within(input.content, n);
    CHECK(input.rank >= 0 && input.rank <= PlainInput::kMostDims);
  }
  return found;
}

}  // namespace hedgerow
