// Decides which absent ids of a writing call get a row, by the table's admission rule.
#pragma once

#include <memory>
#include <utility>

#include "admission.h"
#include "plan.h"

namespace hedgerow {

// What equal ids of an update are: one optimizer step with their summed gradient, or one step each.
enum class EqualIds { summed, one_step_each };

// What an admission rule is told about a write.
struct AdmissionContext {
  i64 step;
  EqualIds equal_ids = EqualIds::summed;
  const i64* counts = nullptr;  // occurrences that each id stands for; null: one each
};

class AdmissionGate {
 public:
  // No rule: every id is admitted.
  explicit AdmissionGate(std::shared_ptr<Admission> rule) : rule_(std::move(rule)) {}

  bool has_rule() const { return rule_ != nullptr; }

  // Asks the rule about the absent ids of a plan and takes refused occurrences out of it, before
  // anything is reserved for them. Returns how many were refused.
  i64 refuse(Plan& plan, const AdmissionContext& context) const;

 private:
  std::shared_ptr<Admission> rule_;
};

}  // namespace hedgerow
