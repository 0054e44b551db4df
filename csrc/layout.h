// What one row of a table looks like in memory, and the segment settings it follows from.
#pragma once

#include <string>
#include <vector>

#include "codec.h"
#include "initializer.h"
#include "optimizer.h"

namespace hedgerow {

// One segment as the caller describes it.
struct SegmentSpec {
  int dim = 0;
  Initializer init;
  std::string rule;              // empty in a serving table
  std::vector<double> settings;  // of the rule, in its order
  std::vector<float> initial_state;
  Codec codec;
  bool round_to_half = false;
};

struct Segment {
  int dim;
  int first_column;  // in the row
  int state_from;    // first float of its state, counted from the row's start (training)
  int encoded_from;  // first byte in a serving row
  Initializer init;
  const Rule* rule;  // null in a serving table
  RuleSettings settings;
  std::vector<float> initial_state;
  Codec codec;
  bool round_to_half;
};

// Training: `dim` floats, then every segment's state. Serving: every segment encoded, no state.
enum class RowForm { training, serving };

struct RowLayout {
  RowLayout(const std::vector<SegmentSpec>& specs, RowForm form);  // throws std::invalid_argument

  bool serving() const { return form == RowForm::serving; }

  RowForm form;
  int dim = 0;
  int state_floats = 0;
  int row_bytes = 0;        // what a row holds
  int stride = 0;           // what it takes: 16-byte aligned
  bool plain = true;        // a lookup is a copy: training, and no segment reads through a view
  bool needs_step = false;  // reading depends on the step

  // Whether finite values stay finite in a row: 16-bit floats of a serving row may overflow.
  bool can_hold(const float* values) const;
  std::vector<Segment> segments;
};

}  // namespace hedgerow
