// Ids of strings: XXH64 of each, the same bits as core/hashing.py gives.
#pragma once

#include "bits.h"

namespace hedgerow {

u64 xxh64(const u8* data, u64 n, u64 seed);

// String i is data[offsets[i] .. offsets[i + 1]); the seed tells fields apart.
void hash_strings(const u8* data, const i64* offsets, u64 n, u64 seed, u64* out);

}  // namespace hedgerow
