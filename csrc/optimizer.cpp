// The table of update rules.
#include "optimizer.h"

#include <array>
#include <stdexcept>

#include "rules_adam.h"
#include "rules_common.h"
#include "rules_rare.h"

namespace hedgerow {
namespace {

template <class Body>
constexpr void (*prepare_of())(RuleSettings&) {
  if constexpr (requires { Body::prepare; }) return &Body::prepare;
  return nullptr;
}

template <class Body>
constexpr Corrections (*corrections_of())(const RuleSettings&, i64) {
  if constexpr (requires { Body::corrections; }) return &Body::corrections;
  return nullptr;
}

template <class Body>
struct OverRows {
  static HR_INLINE void run(const StepsArgs& a) {
    for (u64 i = 0; i < a.n; ++i)
      Body::run({a.rows[i] + a.first_column, a.rows[i] + a.state_from, a.grads[i], a.dim, a.rate,
                 a.step, a.settings, a.corrections});
  }
};

template <class Body>
Rule common() {
  using Each = Variants<OverRows<Body>, const StepsArgs&>;
  return {Body::kName,        Body::kSettings,
          Body::kState,       {&Each::baseline, &Each::avx2, &Each::avx512},
          prepare_of<Body>(), corrections_of<Body>()};
}

template <class Body>
Rule rare() {
  return {Body::kName,        Body::kSettings,
          Body::kState,       {&OverRows<Body>::run, &OverRows<Body>::run, &OverRows<Body>::run},
          prepare_of<Body>(), corrections_of<Body>()};
}

const auto& all_rules() {
  using namespace rules;
  static const std::array table = {
      common<Sgd>(),
      common<Adagrad>(),
      common<RowAdagrad>(),
      common<Momentum>(),
      common<TorchMomentum>(),
      common<AdamRule<false>>(),
      common<AdamRule<true>>(),
      common<TorchAdamRule<false>>(),
      common<TorchAdamRule<true>>(),
      common<DenseAdamRule<false>>(),
      common<DenseAdamRule<true>>(),
      common<Ftrl>(),
      common<RmsProp>(),
      common<TorchRmsPropRule<false>>(),
      common<TorchRmsPropRule<true>>(),
      rare<DecoupledAdagrad>(),
      rare<Adadelta>(),
      rare<GroupFtrl>(),
      rare<GroupAdagrad>(),
      rare<MovingAverage>(),
      rare<RmsPropV2>(),
      rare<BatchSoftmax>(),
  };
  return table;
}

}  // namespace

const Rule& rule_named(const std::string& name) {
  for (const Rule& rule : all_rules())
    if (name == rule.name) return rule;
  throw std::invalid_argument("unknown update rule '" + name + "'");
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Rule& rule : all_rules()) names.emplace_back(rule.name);
  return names;
}

}  // namespace hedgerow
