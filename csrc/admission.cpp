// The rules of admission: by count, by chance.
#include "admission.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "philox.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kAhead = 4;  // ids whose cells in the filter are fetched ahead

}  // namespace

PerSlot::PerSlot(double standard, const std::vector<std::pair<u32, double>>& slots)
    : standard_(standard) {
  if (slots.empty()) return;
  values_.assign(kSlots, standard);
  for (const auto& [slot, value] : slots) {
    if (slot >= kSlots)
      throw std::invalid_argument("slot is " + std::to_string(slot) + "; it must be below 32768");
    values_[slot] = value;
  }
}

void Admission::ask_each(const i64* ids, const i64* counts, u64 n, i64 step, u8* admitted) {
  const CallScope scope;
  std::vector<u64> occurrences(n, 1);
  if (counts != nullptr) std::copy(counts, counts + n, occurrences.begin());
  std::vector<Sightings> all(n);
  for (u64 i = 0; i < n; ++i) all[i] = {u64(ids[i]), &occurrences[i], 1, 0};
  ask(all, step);
  for (u64 i = 0; i < n; ++i) admitted[i] = all[i].refused == 0;
}

bool CountAdmission::admits(SlidingFilter::Hold& hold, u64 id, u64 occurrences) const {
  const double threshold = thresholds_.of(id);
  return threshold <= 0 || double(hold.add(id, occurrences)) >= threshold;
}

void CountAdmission::ask(std::span<Sightings> all, i64) {
  SlidingFilter::Hold hold(*filter_, table_);
  for (u64 i = 0; i < all.size(); ++i) {
    if (i + kAhead < all.size()) hold.fetch(all[i + kAhead].id);
    Sightings& one = all[i];
    one.refused = 0;
    while (one.refused < one.count && !admits(hold, one.id, one.occurrences[one.refused]))
      ++one.refused;
  }
}

ChanceForm chance_form(const std::string& name) {
  if (name == "each") return ChanceForm::each;
  if (name == "unequal") return ChanceForm::unequal;
  if (name == "equal") return ChanceForm::equal;
  throw std::invalid_argument("form is '" + name + "'; it must be 'each', 'unequal' or 'equal'");
}

double admission_probability(ChanceForm form, double parameter, u64 occurrences) {
  const double n = double(occurrences);
  if (form == ChanceForm::each) return 1 - std::pow(1 - parameter, n);
  if (parameter <= 0) return 1;
  if (form == ChanceForm::unequal) return std::min(1.0, n / parameter);
  return 1 - std::pow(0.05, n / parameter);
}

void ChanceAdmission::ask(std::span<Sightings> all, i64 step) {
  const u32 tag = philox_tag(Stream::chance, 0, step);
  for (Sightings& one : all) {
    const RowDraw draw(seed_, one.id, tag);
    const double parameter = parameters_.of(one.id);
    const auto admits = [&](u32 number) {
      return double(unit_float(draw.block(number).word[0])) <
             admission_probability(form_, parameter, one.occurrences[number]);
    };
    one.refused = 0;
    while (one.refused < one.count && !admits(one.refused)) ++one.refused;
  }
}

}  // namespace hedgerow
