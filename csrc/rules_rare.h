// The rare update rules: plain loops, one compilation, double precision where a norm is taken.
#pragma once

#include <cmath>
#include <cstring>

#include "rules_common.h"

namespace hedgerow::rules {

inline double norm_of(const float* x, int dim) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += double(x[i]) * x[i];
  return std::sqrt(squares);
}

struct DecoupledAdagrad {  // decay; state: norm. The decoupled form of dynamic_wd_adagrad
  static constexpr const char* kName = "decoupled_adagrad";
  static constexpr int kSettings = 1;
  static constexpr auto kState = state_floats<1, 0>;
  static void run(const StepArgs& a) {
    const float decay = a.settings->value[0];
    for (int i = 0; i < a.dim; ++i) {
      a.state[i] += a.g[i] * a.g[i];
      a.w[i] -= ratio(a.rate * a.g[i], std::sqrt(a.state[i])) + a.rate * decay * a.w[i];
    }
  }
};

struct Adadelta {  // decay, rho, 1-rho, epsilon; state: accum, accum_update
  static constexpr const char* kName = "adadelta";
  static constexpr int kSettings = 4;
  static constexpr auto kState = state_floats<2, 0>;
  static void run(const StepArgs& a) {
    const float* s = a.settings->value.data();
    const float decay = s[0], rho = s[1], rest = s[2], epsilon = s[3];
    float* accum = a.state;
    float* update = a.state + a.dim;
    for (int i = 0; i < a.dim; ++i) {
      const float x = a.g[i] + decay * a.w[i];
      accum[i] = rho * accum[i] + rest * (x * x);
      const float u = ratio(std::sqrt(update[i] + epsilon) * x, std::sqrt(accum[i] + epsilon));
      a.w[i] -= a.rate * u;
      update[i] = rho * update[i] + rest * (u * u);
    }
  }
};

struct GroupFtrl {  // beta, l1, l2; state: norm, zero
  static constexpr const char* kName = "group_ftrl";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<2, 0>;
  static void run(const StepArgs& a) {
    if (a.rate < kLeastRate) return;  // the formula divides by the rate
    const float beta = a.settings->value[0], l1 = a.settings->value[1], l2 = a.settings->value[2];
    float* norm = a.state;
    float* zero = a.state + a.dim;
    for (int i = 0; i < a.dim; ++i) {
      const float grown = norm[i] + a.g[i] * a.g[i];
      const float sigma = (std::sqrt(grown) - std::sqrt(norm[i])) / a.rate;
      zero[i] += a.g[i] - sigma * a.w[i];
      norm[i] = grown;
    }
    const double group = norm_of(zero, a.dim);
    const bool gone = group < l1 || group == 0.0;
    const float shrink = gone ? 0.0f : float((l1 - group) / group);
    for (int i = 0; i < a.dim; ++i)
      a.w[i] = ratio(a.rate * zero[i] * shrink, beta + std::sqrt(norm[i]) + l2 * a.rate);
  }
};

struct GroupAdagrad {  // beta, l2, decay; state: one sum of squares for the segment
  static constexpr const char* kName = "group_adagrad";
  static constexpr int kSettings = 3;
  static constexpr auto kState = state_floats<0, 1>;
  static void run(const StepArgs& a) {
    if (a.rate < kLeastRate) return;  // the formula divides by the rate
    const float beta = a.settings->value[0], l2 = a.settings->value[1],
                decay = a.settings->value[2];
    float largest = 0;
    for (int i = 0; i < a.dim; ++i) {
      const float x = a.g[i] + decay * a.w[i];
      largest = std::max(largest, x * x);
    }
    a.state[0] += largest;
    const float divisor = beta + std::sqrt(a.state[0]);
    if (divisor == 0.0f) return;  // nothing was ever seen
    const float alpha = a.rate / divisor;
    double squares = 0;
    for (int i = 0; i < a.dim; ++i) {
      const float z = a.g[i] + decay * a.w[i] - a.w[i] / alpha;
      squares += double(z) * z;
    }
    const double group = std::sqrt(squares);
    const bool gone = group < l2 || group == 0.0;
    const float shrink = gone ? 0.0f : float((group - l2) / group);
    for (int i = 0; i < a.dim; ++i) {
      const float z = a.g[i] + decay * a.w[i] - a.w[i] / alpha;
      a.w[i] = -alpha * shrink * z;
    }
  }
};

struct MovingAverage {  // momentum, 1-momentum; no state, no rate: g is the observed value
  static constexpr const char* kName = "moving_average";
  static constexpr int kSettings = 2;
  static constexpr auto kState = state_floats<0, 0>;
  static void run(const StepArgs& a) {
    const float keep = a.settings->value[0], rest = a.settings->value[1];
    for (int i = 0; i < a.dim; ++i) a.w[i] = keep * a.w[i] + rest * a.g[i];
  }
};

struct RmsPropV2 {  // decay, momentum; state: n
  static constexpr const char* kName = "rmspropv2";
  static constexpr int kSettings = 2;
  static constexpr auto kState = state_floats<1, 0>;
  static void run(const StepArgs& a) {
    const double decay = a.settings->exact[0], mu = a.settings->exact[1];
    for (int i = 0; i < a.dim; ++i) {
      const double x = a.g[i] + decay * a.w[i];
      a.state[i] = float(mu * a.state[i] + x * x);
      a.w[i] = float(a.w[i] - a.rate / (std::sqrt(double(a.state[i])) + 1.0) * x);
    }
  }
};

struct BatchSoftmax {  // state: the last step as int64, in two floats' room; the gradient is
                       // ignored
  static constexpr const char* kName = "batch_softmax";
  static constexpr int kSettings = 0;
  static constexpr auto kState = state_floats<0, 2>;
  static void run(const StepArgs& a) {
    const i64 now = a.step == kNoStep ? 0 : a.step;
    i64 last;
    std::memcpy(&last, a.state, sizeof(last));
    a.w[0] = (1.0f - a.rate) * a.w[0] + a.rate * float(now - last);
    std::memcpy(a.state, &now, sizeof(now));
  }
};

}  // namespace hedgerow::rules
