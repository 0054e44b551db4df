// Keyed hashes of ids: where a table, a filter or the dedup of a batch places them.
//
// Ids are often chosen by strangers. Whoever knows the hash can choose ids that all fall into one
// place, and each of them then costs a search through all others. So the constants of the hash
// follow from a key that only this process, or this table and its checkpoints, know. No result
// depends on the key.
#pragma once

#include "bits.h"

namespace hedgerow {

// Two rounds: after one, an arithmetic progression with an unlucky stride lands in one corner of a
// shard. The key changes the multipliers, too: if it changed only what is added, pairs of ids that
// differ in chosen bits could meet under most keys.
class SlotHash {
 public:
  struct Constants {
    u64 add_1, by_1, add_2, by_2;  // the multipliers are odd
  };

  // Key 0 leaves the constants as they are.
  constexpr SlotHash(const Constants& base, u64 key)
      : at_{base.add_1 ^ derived(key, 0xd1342543de82ef95ull),
            base.by_1 ^ (derived(key, 0xaf251af3b0f025b5ull) << 1),
            base.add_2 ^ derived(key, 0x2545f4914f6cdd1dull),
            base.by_2 ^ (derived(key, 0xb564ef22ec7aece5ull) << 1)} {}

  // Of the slots of a table. It must share no structure with the router's mix64: with the same bits
  // for rank and bucket, a rank that owns every 64th hash would leave most of its buckets
  // unreachable.
  explicit constexpr SlotHash(u64 key)
      : SlotHash({0x9e3779b97f4a7c15ull, 0xd6e8feb86659fd93ull, 0xa0761d6478bd642full,
                  0xe7037ed1a0b428dbull},
                 key) {}

  HR_INLINE u64 operator()(u64 id) const {
    return fold(fold(id ^ at_.add_1, at_.by_1) ^ at_.add_2, at_.by_2);
  }

 private:
  static HR_INLINE u64 fold(u64 a, u64 b) {
    const u128 product = u128(a) * b;
    return u64(product) ^ u64(product >> 64);
  }

  // A number that follows from the key and tells nothing of it; 0 for key 0.
  static constexpr u64 derived(u64 key, u64 by) {
    u64 x = key * by;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

  Constants at_;
};

// The hash of this process, for what lives no longer than a call. Its key is drawn at the start.
const SlotHash& process_hash();

}  // namespace hedgerow
