// Compressors: how a segment of a serving row is stored, and how a training row looks through one.
#pragma once

#include <string>

#include "bits.h"

namespace hedgerow {

enum class CodecKind { fp32, fp16, bf16, fixed_r8, one_bit };

CodecKind codec_kind(const std::string& name);  // throws std::invalid_argument
int bytes_per_value(CodecKind kind);

struct Codec {
  CodecKind kind = CodecKind::fp32;
  float range = 1;      // fixed_r8: values lie in [-range, range)
  float amplitude = 1;  // one_bit: a code is +-amplitude
  // one_bit in training: the slope of tanh grows with the step, up to max_scale.
  i64 step_size = 1;
  double init_scale = 1, max_scale = 1;

  // Whether a training row reads differently through this codec than it is stored.
  bool changes_training() const {
    return kind == CodecKind::fixed_r8 || kind == CodecKind::one_bit;
  }
};

void encode(const Codec& codec, const float* values, int dim, u8* out);
void decode(const Codec& codec, const u8* stored, int dim, float* out);

// The training-time view of a raw row. `out` may be `values`.
void view_forward(const Codec& codec, i64 step, const float* values, int dim, float* out);

// Gradient of the raw row from the gradient of its view. `out` may be `grad`.
void view_backward(const Codec& codec, i64 step, const float* values, const float* grad, int dim,
                   float* out);

}  // namespace hedgerow
