// Which absent ids a table lets in: asked before a row is reserved for them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bits.h"
#include "sliding_filter.h"

namespace hedgerow {

// An absent id with its sightings, each of one occurrence or more. They are asked about in order
// until one is let in; `refused` is how many were not.
struct Sightings {
  u64 id;
  const u64* occurrences;
  u32 count;
  u32 refused;
};

class Admission {
 public:
  virtual ~Admission() = default;
  virtual void ask(std::span<Sightings> all, i64 step) = 0;

  // Every id on its own, in order. Without `counts`, one occurrence each.
  void ask_each(const i64* ids, const i64* counts, u64 n, i64 step, u8* admitted);
};

// A number for every slot of an id (its 15 bits from the 48th on).
class PerSlot {
 public:
  PerSlot(double standard, const std::vector<std::pair<u32, double>>& slots);
  double of(u64 id) const {
    return values_.empty() ? standard_ : values_[(id >> 48) & (kSlots - 1)];
  }

 private:
  static constexpr u64 kSlots = 1 << 15;
  double standard_;
  std::vector<double> values_;  // empty: the standard for all
};

// Lets an id in when it was counted `threshold` times before. Thresholds of 0 or less let
// everything in and count nothing.
class CountAdmission final : public Admission {
 public:
  CountAdmission(std::shared_ptr<SlidingFilter> filter, u64 table, PerSlot thresholds)
      : filter_(std::move(filter)), table_(table), thresholds_(std::move(thresholds)) {}
  void ask(std::span<Sightings> all, i64 step) override;

 private:
  bool admits(SlidingFilter::Hold& hold, u64 id, u64 occurrences) const;

  std::shared_ptr<SlidingFilter> filter_;
  u64 table_;
  PerSlot thresholds_;
};

// How likely `occurrences` of an absent id let it in.
//   each:    1 - (1 - p)^n, every occurrence for itself with probability p
//   unequal: min(1, n / t)
//   equal:   1 - 0.05^(n / t)
enum class ChanceForm { each, unequal, equal };
ChanceForm chance_form(const std::string& name);  // throws std::invalid_argument
double admission_probability(ChanceForm form, double parameter, u64 occurrences);

// Draws from (seed, id, step) and the number of the sighting, so that other ids do not matter.
class ChanceAdmission final : public Admission {
 public:
  ChanceAdmission(ChanceForm form, u64 seed, PerSlot parameters)
      : form_(form), seed_(seed), parameters_(std::move(parameters)) {}
  void ask(std::span<Sightings> all, i64 step) override;

 private:
  ChanceForm form_;
  u64 seed_;
  PerSlot parameters_;
};

}  // namespace hedgerow
