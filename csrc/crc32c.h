// CRC32C (Castagnoli), the checksum of record files.
#pragma once

#include "bits.h"

namespace hedgerow {

// The checksum of n bytes that follow bytes with checksum `seed`; 0 = nothing came before.
u32 crc32c(const u8* data, u64 n, u32 seed);

// The same from tables alone: for machines without the instruction, and for tests.
u32 crc32c_by_table(const u8* data, u64 n, u32 seed);

}  // namespace hedgerow
