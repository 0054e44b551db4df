// The common update rules, compiled for every instruction set. Settings are listed in order at each
// rule.
//
// Guards: a rate of 0 leaves the embedding as it is; 0/0 is 0. Sums over a row use fixed lanes, so
// every instruction set adds in the same order.
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace hedgerow::rules {

// Rules that divide by the rate skip the step below this, the smallest normal float.
inline constexpr float kLeastRate = 0x1p-126f;

HR_INLINE float ratio(float numerator, float denominator) {
  return denominator == 0.0f ? 0.0f : numerator / denominator;
}

HR_INLINE float sum_of_squares(const float* __restrict x, int dim) {
  constexpr int kLanes = 16;
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lane[k] += x[i + k] * x[i + k];
  for (int k = 0; i + k < dim; ++k) lane[k] += x[i + k] * x[i + k];
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) lane[k] += lane[k + width];
  return lane[0];
}

template <int kPerValue, int kPerRow>
constexpr int state_floats(int dim) {
  return kPerValue * dim + kPerRow;
}

struct Sgd {  // decay
  static constexpr const char* kName = "sgd";
  static constexpr int kSettings = 1;
  static constexpr auto kState = state_floats<0, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    const float decay = a.settings->value[0], rate = a.rate;
    float* __restrict w = a.w;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) w[i] -= rate * (g[i] + decay * w[i]);
  }
};

struct Adagrad {  // decay, epsilon; state: norm
  static constexpr const char* kName = "adagrad";
  static constexpr int kSettings = 2;
  static constexpr auto kState = state_floats<1, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    const float decay = a.settings->value[0], epsilon = a.settings->value[1], rate = a.rate;
    float* __restrict w = a.w;
    float* __restrict norm = a.state;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const float x = g[i] + decay * w[i];
      norm[i] += x * x;
      w[i] -= ratio(rate * x, std::sqrt(norm[i]) + epsilon);
    }
  }
};

struct RowAdagrad {  // decay, epsilon; state: one mean square for the row
  static constexpr const char* kName = "row_adagrad";
  static constexpr int kSettings = 2;
  static constexpr auto kState = state_floats<0, 1>;
  static HR_INLINE void run(const StepArgs& a) {
    const float decay = a.settings->value[0], epsilon = a.settings->value[1];
    float* __restrict w = a.w;
    const float* __restrict g = a.g;
    constexpr int kBlock = 64;  // decayed gradients of one block live in registers or on the stack
    float squares = 0;
    if (decay == 0.0f) {
      squares = sum_of_squares(g, a.dim);
    } else {
      for (int from = 0; from < a.dim; from += kBlock) {
        const int n = std::min(kBlock, a.dim - from);
        float x[kBlock];
        for (int i = 0; i < n; ++i) x[i] = g[from + i] + decay * w[from + i];
        squares += sum_of_squares(x, n);
      }
    }
    a.state[0] += squares / float(a.dim);
    const float factor = ratio(a.rate, std::sqrt(a.state[0]) + epsilon);
    for (int i = 0; i < a.dim; ++i) w[i] -= factor * (g[i] + decay * w[i]);
  }
};

struct Momentum {  // decay, momentum, nesterov; state: n, which carries the rate
  static constexpr const char* kName = "momentum";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<1, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    const float decay = a.settings->value[0], mu = a.settings->value[1], rate = a.rate;
    const bool nesterov = a.settings->value[2] != 0.0f;
    const float keep = rate == 0.0f ? 0.0f : 1.0f;  // rate 0: the velocity decays, the row stays
    float* __restrict w = a.w;
    float* __restrict n = a.state;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const float old = n[i];
      const float now = mu * old - rate * (g[i] + decay * w[i]);
      n[i] = now;
      w[i] += keep * (nesterov ? (1.0f + mu) * now - mu * old : now);
    }
  }
};

struct TorchMomentum {  // decay, momentum, nesterov; state: buffer, free of the rate
  static constexpr const char* kName = "torch_momentum";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<1, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    const float decay = a.settings->value[0], mu = a.settings->value[1], rate = a.rate;
    const bool nesterov = a.settings->value[2] != 0.0f;
    float* __restrict w = a.w;
    float* __restrict buffer = a.state;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const float x = g[i] + decay * w[i];
      buffer[i] = mu * buffer[i] + x;
      w[i] -= rate * (nesterov ? x + mu * buffer[i] : buffer[i]);
    }
  }
};

// beta1, 1-beta1, beta2, 1-beta2, epsilon, decay, nesterov; state: m, v, [vhat,] beta1^t, beta2^t
template <bool kMaximum>
struct AdamRule {
  static constexpr const char* kName = kMaximum ? "amsgrad" : "adam";
  static constexpr int kSettings = 7;
  static constexpr auto kState = state_floats < kMaximum ? 3 : 2, 2 > ;
  static HR_INLINE void run(const StepArgs& a) {
    const float* s = a.settings->value.data();
    const float beta1 = s[0], rest1 = s[1], beta2 = s[2], rest2 = s[3], epsilon = s[4],
                decay = s[5];
    const bool nesterov = s[6] != 0.0f;
    float* __restrict w = a.w;
    float* __restrict m = a.state;
    float* __restrict v = a.state + a.dim;
    float* __restrict vhat = a.state + 2 * a.dim;  // only touched when kMaximum
    float* powers = a.state + (kMaximum ? 3 : 2) * a.dim;
    const float* __restrict g = a.g;
    const float alpha = a.rate * std::sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
    for (int i = 0; i < a.dim; ++i) {
      const float x = g[i] + decay * w[i];
      m[i] += (x - m[i]) * rest1;
      v[i] += (x * x - v[i]) * rest2;
      float second = v[i];
      if (kMaximum) second = vhat[i] = std::max(vhat[i], v[i]);
      const float first = nesterov ? rest1 * x + beta1 * m[i] : m[i];
      w[i] -= ratio(alpha * first, std::sqrt(second) + epsilon);
    }
    powers[0] *= beta1;
    powers[1] *= beta2;
  }
};

struct Ftrl {  // beta, l1, l2; state: norm, zero
  static constexpr const char* kName = "ftrl";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<2, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    if (a.rate < kLeastRate) return;  // the formula divides by the rate
    const float beta = a.settings->value[0], l1 = a.settings->value[1], l2 = a.settings->value[2];
    const float rate = a.rate;
    float* __restrict w = a.w;
    float* __restrict norm = a.state;
    float* __restrict zero = a.state + a.dim;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const float grown = norm[i] + g[i] * g[i];
      const float root = std::sqrt(grown);
      const float sigma = (root - std::sqrt(norm[i])) / rate;
      const float z = zero[i] + (g[i] - sigma * w[i]);
      norm[i] = grown;
      zero[i] = z;
      const float shrunk = (z < 0.0f ? -l1 : l1) - z;
      const float moved = ratio(rate * shrunk, root + beta + l2 * rate);
      w[i] = std::fabs(z) <= l1 ? 0.0f : moved;
    }
  }
};

struct RmsProp {  // decay, momentum, 1-momentum; state: n. Double inside, as Monolith's formula
                  // asks
  static constexpr const char* kName = "rmsprop";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<1, 0>;
  static HR_INLINE void run(const StepArgs& a) {
    const double decay = a.settings->exact[0], mu = a.settings->exact[1],
                 rest = a.settings->exact[2], rate = a.rate;
    float* __restrict w = a.w;
    float* __restrict n = a.state;
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const double x = g[i] + decay * w[i];
      n[i] = float(mu * n[i] + rest * (x * x));
      w[i] = float(w[i] - rate / (std::sqrt(double(n[i])) + 1.0) * x);
    }
  }
};

// alpha, 1-alpha, epsilon, decay, momentum; state: square_avg[, momentum_buffer]
template <bool kBuffer>
struct TorchRmsPropRule {
  static constexpr const char* kName = kBuffer ? "torch_rmsprop_momentum" : "torch_rmsprop";
  static constexpr int kSettings = 5;
  static constexpr auto kState = state_floats < kBuffer ? 2 : 1, 0 > ;
  static HR_INLINE void run(const StepArgs& a) {
    const float* s = a.settings->value.data();
    const float alpha = s[0], rest = s[1], epsilon = s[2], decay = s[3], mu = s[4];
    const float rate = a.rate;
    float* __restrict w = a.w;
    float* __restrict square = a.state;
    float* __restrict buffer = a.state + a.dim;  // only touched when kBuffer
    const float* __restrict g = a.g;
    for (int i = 0; i < a.dim; ++i) {
      const float x = g[i] + decay * w[i];
      square[i] = square[i] * alpha + rest * (x * x);
      float move = ratio(x, std::sqrt(square[i]) + epsilon);
      if (kBuffer) move = buffer[i] = mu * buffer[i] + move;
      w[i] -= rate * move;
    }
  }
};

}  // namespace hedgerow::rules
