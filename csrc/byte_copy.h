// Copies of short rows by bytes: the usual widths are compiled in, for a call of memcpy costs more
// than such a copy.
#pragma once

#include <cstring>
#include <type_traits>

#include "bits.h"

namespace hedgerow {

template <u64 kBytes>
using Bytes = std::integral_constant<u64, kBytes>;

// Calls body(bytes), with the number as a constant where it is a usual one.
template <class Body>
HR_INLINE void with_bytes(u64 bytes, Body&& body) {
  switch (bytes) {
    case 4:
      return body(Bytes<4>());
    case 8:
      return body(Bytes<8>());
    case 12:
      return body(Bytes<12>());
    case 16:
      return body(Bytes<16>());
    case 32:
      return body(Bytes<32>());
    case 64:
      return body(Bytes<64>());
    case 128:
      return body(Bytes<128>());
    case 256:
      return body(Bytes<256>());
    default:
      return body(bytes);
  }
}

}  // namespace hedgerow
