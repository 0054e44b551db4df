// Encodes and decodes row segments.
#include "codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "half.h"

namespace hedgerow {
namespace {

HR_INLINE i8 quantize(float x, float step) {
  if (x != x) return 0;
  const float half_step = step / 2;
  const float code = std::trunc((x + (x < 0 ? -half_step : half_step)) / step);
  return i8(std::clamp(code, -128.0f, 127.0f));
}

// Slope of one_bit's tanh: a function of the step alone, constant between multiples of step_size.
float one_bit_scale(const Codec& codec, i64 step) {
  const double reached = double(step - step % codec.step_size);
  return float(std::min(codec.init_scale * std::sqrt(1.0 + 0.005 * reached), codec.max_scale));
}

template <class Convert>
void store_each(const float* values, int dim, u8* out, Convert convert) {
  using Code = decltype(convert(0.0f));
  for (int i = 0; i < dim; ++i) {
    const Code code = convert(values[i]);
    std::memcpy(out + sizeof(Code) * i, &code, sizeof(Code));
  }
}

template <class Code, class Convert>
void load_each(const u8* stored, int dim, float* out, Convert convert) {
  for (int i = 0; i < dim; ++i) {
    Code code;
    std::memcpy(&code, stored + sizeof(Code) * i, sizeof(Code));
    out[i] = convert(code);
  }
}

}  // namespace

CodecKind codec_kind(const std::string& name) {
  if (name == "fp32") return CodecKind::fp32;
  if (name == "fp16") return CodecKind::fp16;
  if (name == "bf16") return CodecKind::bf16;
  if (name == "fixed_r8") return CodecKind::fixed_r8;
  if (name == "one_bit") return CodecKind::one_bit;
  throw std::invalid_argument("unknown compressor '" + name + "'");
}

int bytes_per_value(CodecKind kind) {
  switch (kind) {
    case CodecKind::fp32:
      return 4;
    case CodecKind::fp16:
    case CodecKind::bf16:
      return 2;
    default:
      return 1;
  }
}

void encode(const Codec& codec, const float* values, int dim, u8* out) {
  switch (codec.kind) {
    case CodecKind::fp32:
      std::memcpy(out, values, sizeof(float) * dim);
      break;
    case CodecKind::fp16:
      store_each(values, dim, out, [](float x) { return float_to_half(x); });
      break;
    case CodecKind::bf16:
      store_each(values, dim, out, [](float x) { return float_to_bfloat(x); });
      break;
    case CodecKind::fixed_r8:
      store_each(values, dim, out, [s = codec.range / 128](float x) { return quantize(x, s); });
      break;
    case CodecKind::one_bit:
      store_each(values, dim, out, [](float x) { return i8(x > 0 ? 1 : -1); });
      break;
  }
}

void decode(const Codec& codec, const u8* stored, int dim, float* out) {
  switch (codec.kind) {
    case CodecKind::fp32:
      std::memcpy(out, stored, sizeof(float) * dim);
      break;
    case CodecKind::fp16:
      load_each<u16>(stored, dim, out, [](u16 h) { return half_to_float(h); });
      break;
    case CodecKind::bf16:
      load_each<u16>(stored, dim, out, [](u16 b) { return bfloat_to_float(b); });
      break;
    case CodecKind::fixed_r8:
      load_each<i8>(stored, dim, out, [s = codec.range / 128](i8 q) { return float(q) * s; });
      break;
    case CodecKind::one_bit:
      load_each<i8>(stored, dim, out, [a = codec.amplitude](i8 q) { return float(q) * a; });
      break;
  }
}

void view_forward(const Codec& codec, i64 step, const float* values, int dim, float* out) {
  if (codec.kind == CodecKind::fixed_r8) {
    const float s = codec.range / 128;
    for (int i = 0; i < dim; ++i) out[i] = float(quantize(values[i], s)) * s;
  } else if (codec.kind == CodecKind::one_bit) {
    const float scale = one_bit_scale(codec, step);
    for (int i = 0; i < dim; ++i) out[i] = codec.amplitude * std::tanh(scale * values[i]);
  } else if (out != values) {
    std::memcpy(out, values, sizeof(float) * dim);
  }
}

void view_backward(const Codec& codec, i64 step, const float* values, const float* grad, int dim,
                   float* out) {
  if (codec.kind == CodecKind::one_bit) {
    const double scale = one_bit_scale(codec, step);
    for (int i = 0; i < dim; ++i) {
      // 1 - tanh^2, in the form that does not cancel where tanh is near 1.
      const double c = std::cosh(scale * values[i]);
      out[i] = float(grad[i] * codec.amplitude * scale / (c * c));
    }
  } else if (out != grad) {
    std::memcpy(out, grad, sizeof(float) * dim);
  }
}

}  // namespace hedgerow
