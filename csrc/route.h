// Which shard owns a key, and what the key is called there: the rules of hedgerow/routing.
#pragma once

#include "bits.h"

namespace hedgerow {

enum class RouteCode : int { kContinuous = 0, kRoundrobin = 1, kHashRoundrobin = 2 };

RouteCode route_code(int number);  // throws std::invalid_argument

// Keys are unsigned. The first `skipped` shards own nothing; the `owners` after them share the
// keys. `block` is the rows of an owner, for kContinuous. `bounds`, if there are any, override the
// code: sorted, the first one 0, as many as owners or one more.
struct RouteRule {
  RouteCode code;
  u64 owners, skipped, block;
  const u64* bounds;
  u64 bound_count;
};

// The 64-bit finaliser of MurmurHash3.
HR_INLINE u64 mix64(u64 key) {
  key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdull;
  key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return key ^ (key >> 33);
}

// Division by a number that stays: a multiplication and at most one step of correction, since the
// rounded-down inverse misses the quotient by less than one.
struct Divisor {
  u64 by, inverse;
  explicit Divisor(u64 number) : by(number), inverse(~u64(0) / number) {}
  struct Result {
    u64 quotient, rest;
  };
  HR_INLINE Result operator()(u64 key) const {
    const u64 quotient = u64((u128(key) * inverse) >> 64);
    const u64 rest = key - quotient * by;
    return rest < by ? Result{quotient, rest} : Result{quotient + 1, rest - by};
  }
};

// Throws std::invalid_argument for a rule that has no owner for some key.
void check_rule(const RouteRule& rule);

// Whether the name of a key differs at its owner.
bool renames(const RouteRule& rule);

// Owners of `n` keys on the calling thread. `local`, if not null: the names of the keys there.
void route_part(const RouteRule& rule, const u64* keys, u64 n, u32* owners, u64* local);

// The same over all threads, with owners of any size. Either output may be null.
void route(const RouteRule& rule, const u64* keys, u64 n, i64* owners, u64* local);

}  // namespace hedgerow
