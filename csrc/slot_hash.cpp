// The key of the process.
#include "slot_hash.h"

#include <random>

namespace hedgerow {
namespace {

u64 random_key() {
  std::random_device draw;
  return u64(draw()) << 32 | draw();
}

}  // namespace

const SlotHash& process_hash() {
  static const SlotHash hash(random_key());
  return hash;
}

}  // namespace hedgerow
