// Optimizer steps on a segment of rows: the arguments and the table of update rules by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "isa.h"

namespace hedgerow {

// Settings of a rule, ready for the inner loop. `bias` holds Adam's bias corrections by step count,
// `drift` how far a row of dense Adam moves after its last gradient, by the step of that gradient;
// equal betas share one table.
struct RuleSettings {
  std::vector<double> exact;
  std::vector<float> value;
  std::shared_ptr<const std::vector<float>> bias;
  std::shared_ptr<const std::vector<double>> drift;
};

// The step of an update that was given none.
inline constexpr i64 kNoStep = -1;

// Adam's bias corrections: factors of the rate and of the root of the second moment.
struct Corrections {
  float first = 1.0f, second = 1.0f;
};

// One step on one row.
struct StepArgs {
  float* w;        // the segment's embedding, dim floats
  float* state;    // the segment's state, laid out as the rule says
  const float* g;  // gradient, dim floats, never written
  int dim;
  float rate;
  i64 step;
  const RuleSettings* settings;
  Corrections corrections;  // at the step, by the rule's `corrections`
};

// A step on the same segment of several rows.
struct StepsArgs {
  float* const* rows;
  const float* const* grads;  // of the segment
  u64 n;
  int first_column;  // where the segment's embedding and state start in a row
  int state_from;
  int dim;
  float rate;
  i64 step;
  const RuleSettings* settings;
  Corrections corrections;
};

using StepFunction = void (*)(const StepsArgs&);

struct Rule {
  const char* name;
  int settings;                    // how many settings it takes
  int (*state_floats)(int dim);    // floats of state behind a segment of `dim`
  StepFunction step[kIsas];        // one compilation per instruction set
  void (*prepare)(RuleSettings&);  // fills derived settings; may be null
  Corrections (*corrections)(const RuleSettings&, i64 step);  // once for an update; may be null
};

const Rule& rule_named(const std::string& name);  // throws std::invalid_argument
std::vector<std::string> rule_names();

}  // namespace hedgerow
