// Owners of keys, and keys ordered by their owners.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind.h"
#include "bucketize.h"
#include "route.h"

namespace hedgerow {
namespace {

RouteRule route_rule(int code, u64 owners, u64 skipped, u64 block, const std::vector<u64>& bounds) {
  return {route_code(code), owners, skipped, block, bounds.data(), bounds.size()};
}

// `numbers`: owners, skipped and block of every feature.
std::vector<RouteRule> route_rules(const std::int32_t* codes,
                                   const std::vector<std::vector<u64>>& numbers,
                                   const std::vector<std::vector<u64>>& bounds) {
  std::vector<RouteRule> rules;
  rules.reserve(numbers.size());
  for (u64 f = 0; f < numbers.size(); ++f)
    rules.push_back(
        route_rule(codes[f], numbers[f].at(0), numbers[f].at(1), numbers[f].at(2), bounds.at(f)));
  return rules;
}

}  // namespace

void bind_route(nb::module_& m) {
  m.def(
      "route",
      [](Address keys, u64 n, int code, u64 owners, u64 skipped, u64 block,
         const std::vector<u64>& bounds, Address shards, Address local) {
        route(route_rule(code, owners, skipped, block, bounds), at<u64>(keys), n, at<i64>(shards),
              at<u64>(local));
      },
      unlocked);
  m.def(
      "bucketize",
      [](Address keys, Address row_splits, u64 rows, Address feature_rows, Address codes,
         const std::vector<std::vector<u64>>& numbers, const std::vector<std::vector<u64>>& bounds,
         u64 shards, Address weights, bool local_keys, Address out_lengths, Address out_keys,
         Address out_weights, Address positions, Address places) {
        const std::vector<RouteRule> rules = route_rules(at<std::int32_t>(codes), numbers, bounds);
        bucketize({at<u64>(keys), at<i64>(row_splits), rows, at<i64>(feature_rows), rules.data(),
                   rules.size(), shards, at<float>(weights),
                   local_keys ? KeyNames::local : KeyNames::global},
                  {at<i64>(out_lengths), at<u64>(out_keys), at<float>(out_weights),
                   at<i64>(positions), at<i64>(places)});
      },
      unlocked);
}

}  // namespace hedgerow
