// 16-bit float formats in integer arithmetic: IEEE half and bfloat16, nearest-even, and half's
// neighbours.
#pragma once

#include <bit>
#include <cmath>

#include "bits.h"

namespace hedgerow {

HR_INLINE u32 float_bits(float x) { return std::bit_cast<u32>(x); }
HR_INLINE float bits_float(u32 x) { return std::bit_cast<float>(x); }

HR_INLINE u16 float_to_half(float x) {
  const u32 bits = float_bits(x);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return u16(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return u16(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half: adding 0.5 lets the float adder round to multiples of 2^-24.
    const u32 rounded = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
    return u16(sign | rounded);
  }
  const u32 odd = (magnitude >> 13) & 1u;
  return u16(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

HR_INLINE float half_to_float(u16 h) {
  const u32 sign = u32(h & 0x8000u) << 16;
  const u32 magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    const float value = float(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return bits_float(sign | ((magnitude << 13) + 0x38000000u));
}

HR_INLINE u16 float_to_bfloat(float x) {
  const u32 bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return u16((bits >> 16) | 0x40u);  // keep NaN a NaN
  return u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

HR_INLINE float bfloat_to_float(u16 b) { return bits_float(u32(b) << 16); }

// The half values around x: down <= x <= up, equal when x is one. Beyond the largest half
// both are the largest half: there is no finite neighbour to round to without bias.
struct HalfNeighbours {
  float down, up;
};

HR_INLINE HalfNeighbours half_neighbours(float x) {
  constexpr float kLargest = 65504.0f;
  if (x != x) return {x, x};  // a NaN stays visible
  if (x >= kLargest) return {kLargest, kLargest};
  if (x <= -kLargest) return {-kLargest, -kLargest};
  const u16 nearest = float_to_half(x);
  const float value = half_to_float(nearest);
  if (value == x) return {x, x};
  // One step along the half grid towards x; the grid is ordered by magnitude inside each sign.
  const bool away = std::fabs(x) > std::fabs(value);
  const u16 sign = float_bits(x) >> 31 ? 0x8000u : 0;  // the nearest of a tiny x may be a zero
  const u16 magnitude = nearest & 0x7fffu;
  const float other = half_to_float(u16(sign | (away ? magnitude + 1 : magnitude - 1)));
  return value < x ? HalfNeighbours{value, other} : HalfNeighbours{other, value};
}

}  // namespace hedgerow
