// Lays segments out in a row.
#include "layout.h"

#include <stdexcept>

#include "finite.h"
#include "half.h"

namespace hedgerow {
namespace {

Segment place(const SegmentSpec& spec, const RowLayout& row) {
  if (spec.dim <= 0) throw std::invalid_argument("a segment's dim must be at least 1");
  Segment segment{.dim = spec.dim,
                  .first_column = row.dim,
                  .state_from = 0,
                  .encoded_from = row.row_bytes,
                  .init = spec.init,
                  .rule = nullptr,
                  .settings = {spec.settings, {}, {}, {}},
                  .initial_state = spec.initial_state,
                  .codec = spec.codec,
                  .round_to_half = spec.round_to_half};
  if (row.serving()) return segment;
  segment.rule = &rule_named(spec.rule);
  if (int(spec.settings.size()) != segment.rule->settings)
    throw std::invalid_argument("rule " + spec.rule + " takes " +
                                std::to_string(segment.rule->settings) + " settings, not " +
                                std::to_string(spec.settings.size()));
  if (int(spec.initial_state.size()) != segment.rule->state_floats(spec.dim))
    throw std::invalid_argument(
        "rule " + spec.rule + " has " + std::to_string(segment.rule->state_floats(spec.dim)) +
        " floats of state, not " + std::to_string(spec.initial_state.size()));
  segment.settings.value.assign(spec.settings.begin(), spec.settings.end());
  if (segment.rule->prepare != nullptr) segment.rule->prepare(segment.settings);
  return segment;
}

}  // namespace

RowLayout::RowLayout(const std::vector<SegmentSpec>& specs, RowForm form) : form(form) {
  if (specs.empty()) throw std::invalid_argument("a table needs at least one segment");
  for (const SegmentSpec& spec : specs) {
    segments.push_back(place(spec, *this));
    dim += spec.dim;
    if (serving()) {
      row_bytes += spec.dim * bytes_per_value(spec.codec.kind);
      plain = false;
    } else {
      state_floats += int(spec.initial_state.size());
      plain = plain && !spec.codec.changes_training();
      needs_step = needs_step || spec.codec.kind == CodecKind::one_bit;
    }
  }
  int state_from = dim;
  for (Segment& segment : segments) {
    segment.state_from = state_from;
    state_from += int(segment.initial_state.size());
  }
  if (!serving()) row_bytes = 4 * (dim + state_floats);
  stride = (row_bytes + 15) / 16 * 16;
}

bool RowLayout::can_hold(const float* values) const {
  if (!all_finite(values, u64(dim))) return false;
  if (!serving()) return true;
  for (const Segment& segment : segments) {
    const CodecKind kind = segment.codec.kind;
    if (kind != CodecKind::fp16 && kind != CodecKind::bf16) continue;
    const float* part = values + segment.first_column;
    for (int i = 0; i < segment.dim; ++i) {
      if (kind == CodecKind::fp16 && (float_to_half(part[i]) & 0x7fffu) == 0x7c00u) return false;
      if (kind == CodecKind::bf16 && (float_to_bfloat(part[i]) & 0x7fffu) == 0x7f80u) return false;
    }
  }
  return true;
}

}  // namespace hedgerow
