// The rules, each as a tight loop of its own.
#include "route.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kPartKeys = 16384;  // of one task: its inputs and outputs stay in the caches

struct Place {
  u64 owner, local;
};

struct Modulo {
  Divisor owners;
  HR_INLINE Place operator()(u64 key) const { return {owners(key).rest, key}; }
};
struct Mask {
  u64 mask;
  HR_INLINE Place operator()(u64 key) const { return {key & mask, key}; }
};
template <class Rest>
struct Hashed {
  Rest rest;
  HR_INLINE Place operator()(u64 key) const { return {rest(mix64(key)).owner, key}; }
};
struct Continuous {
  Divisor owners, block;
  HR_INLINE Place operator()(u64 key) const {
    const auto inside = block(key);
    if (inside.quotient < owners.by) return {inside.quotient, inside.rest};
    const auto outside = owners(key);
    return {outside.rest, outside.quotient};
  }
};
struct Bounded {
  Divisor owners;
  const u64* bounds;
  u64 count;
  HR_INLINE Place operator()(u64 key) const {
    const u64 place = u64(std::upper_bound(bounds, bounds + count, key) - bounds) - 1;
    if (place < owners.by) return {place, key - bounds[place]};
    const auto outside = owners(key);
    return {outside.rest, outside.quotient};
  }
};

template <class Body>
void with_rule(const RouteRule& rule, Body&& body) {
  const Divisor owners(rule.owners);
  if (rule.bound_count) return body(Bounded{owners, rule.bounds, rule.bound_count});
  if (rule.code == RouteCode::kContinuous) return body(Continuous{owners, Divisor(rule.block)});
  const bool hashed = rule.code == RouteCode::kHashRoundrobin;
  if (std::has_single_bit(rule.owners)) {
    const Mask mask{rule.owners - 1};
    return hashed ? body(Hashed<Mask>{mask}) : body(mask);
  }
  return hashed ? body(Hashed<Modulo>{{owners}}) : body(Modulo{owners});
}

template <class Owner>
void route_keys(const RouteRule& rule, const u64* keys, u64 n, Owner* owners, u64* local) {
  with_rule(rule, [&](auto place_of) {
    if (owners)
      for (u64 i = 0; i < n; ++i) owners[i] = Owner(place_of(keys[i]).owner + rule.skipped);
    if (local)
      for (u64 i = 0; i < n; ++i) local[i] = place_of(keys[i]).local;
  });
}

}  // namespace

RouteCode route_code(int number) {
  if (number < 0 || number > int(RouteCode::kHashRoundrobin))
    throw std::invalid_argument("no routing rule has the code " + std::to_string(number));
  return RouteCode(number);
}

void check_rule(const RouteRule& rule) {
  if (rule.owners == 0) throw std::invalid_argument("a routing rule needs an owner");
  if (rule.bound_count != 0) {
    if (rule.bounds[0] != 0 || !std::is_sorted(rule.bounds, rule.bounds + rule.bound_count))
      throw std::invalid_argument("bounds of a routing rule must rise from 0");
  } else if (rule.code == RouteCode::kContinuous && rule.block == 0) {
    throw std::invalid_argument("a continuous routing rule needs rows in a block");
  }
}

bool renames(const RouteRule& rule) {
  return rule.bound_count || rule.code == RouteCode::kContinuous;
}

void route_part(const RouteRule& rule, const u64* keys, u64 n, u32* owners, u64* local) {
  route_keys(rule, keys, n, owners, local);
}

void route(const RouteRule& rule, const u64* keys, u64 n, i64* owners, u64* local) {
  check_rule(rule);
  const CallScope scope;
  const u64 parts = (n + kPartKeys - 1) / kPartKeys;
  const auto one = [&](i64 part) {
    const u64 from = u64(part) * kPartKeys;
    route_keys(rule, keys + from, std::min(kPartKeys, n - from), owners ? owners + from : nullptr,
               local ? local + from : nullptr);
  };
  if (parts == 1) return one(0);
  parallel_for(i64(parts), one);
}

}  // namespace hedgerow
