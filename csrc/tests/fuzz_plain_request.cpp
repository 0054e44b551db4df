// The entry point for libFuzzer: see HEDGEROW_FUZZ in CMakeLists.txt.
#include "plain_request_property.h"

extern "C" int LLVMFuzzerTestOneInput(const hedgerow::u8* data, std::size_t size) {
  hedgerow::read_any_bytes(data, size);
  return 0;
}
