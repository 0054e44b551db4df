// torch's Adam, AdamW and AmsGrad for rows that have a gradient, and their dense forms.
//
// Settings of all: beta1, 1-beta1, beta2, 1-beta2, epsilon, decay, decoupled, and what the bias
// corrections count and where they stand, see `CountedBy`.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "rules_common.h"

namespace hedgerow::rules {

// The last setting. By `step_sparse`, epsilon stands where SparseAdam has it. A rule that follows
// the step goes by row where none was given.
enum class CountedBy { row = 0, step = 1, step_sparse = 2 };

struct AdamCorrections {
  static constexpr int kTabulated = 1 << 14;  // counts with a tabulated correction

  static CountedBy counted_by(const RuleSettings& settings) {
    return CountedBy(int(settings.exact[7]));
  }

  // Corrections of update number `count` of the table or of a row, from 1.
  static Corrections corrections(const RuleSettings& settings, double count, bool sparse = false) {
    const double root = std::sqrt(1.0 - std::pow(settings.exact[2], count));
    const double first = 1.0 - std::pow(settings.exact[0], count);
    if (sparse) return {float(root / first), 1.0f};
    return {float(1.0 / first), float(1.0 / root)};
  }

  static Corrections at_step(const RuleSettings& settings, i64 step) {
    if (step == kNoStep) return {};
    const bool sparse = counted_by(settings) == CountedBy::step_sparse;
    return corrections(settings, double(step + 1), sparse);
  }

  // The same from the table or, far out, by power.
  static HR_INLINE Corrections tabulated(const RuleSettings& settings, float count) {
    if (!(count >= 1.0f && count <= float(kTabulated))) return corrections(settings, count);
    const float* pair = settings.bias->data() + 2 * (int(count) - 1);
    return {pair[0], pair[1]};
  }

  static void prepare(RuleSettings& settings) {
    using Table = std::vector<float>;
    using Key = std::pair<double, double>;
    static std::mutex mutex;
    static std::map<Key, std::weak_ptr<const Table>> tables;
    const std::lock_guard hold(mutex);
    auto& known = tables[{settings.exact[0], settings.exact[2]}];
    settings.bias = known.lock();
    if (settings.bias) return;
    auto table = std::make_shared<Table>(2 * kTabulated);
    for (int t = 1; t <= kTabulated; ++t) {
      const Corrections at = corrections(settings, t);
      (*table)[2 * (t - 1)] = at.first;
      (*table)[2 * (t - 1) + 1] = at.second;
    }
    known = settings.bias = table;
  }
};

// State: m, v, [vmax,] the updates of the row.
template <bool kMaximum>
struct TorchAdamRule {
  static constexpr const char* kName = kMaximum ? "torch_amsgrad" : "torch_adam";
  static constexpr int kSettings = 8;
  static constexpr auto kState = state_floats < kMaximum ? 3 : 2, 1 > ;

  static void prepare(RuleSettings& settings) { AdamCorrections::prepare(settings); }

  static Corrections corrections(const RuleSettings& settings, i64 step) {
    return AdamCorrections::at_step(settings, step);
  }

  static HR_INLINE void run(const StepArgs& a) {
    const float* s = a.settings->value.data();
    const float rest1 = s[1], beta2 = s[2], rest2 = s[3], epsilon = s[4];
    const bool decoupled = s[6] != 0.0f;
    const float shrink = decoupled ? 1.0f - a.rate * s[5] : 1.0f;
    const float decay = decoupled ? 0.0f : s[5];
    float* __restrict w = a.w;
    float* __restrict m = a.state;
    float* __restrict v = a.state + a.dim;
    float* __restrict vmax = a.state + 2 * a.dim;  // only touched when kMaximum
    float* count = a.state + (kMaximum ? 3 : 2) * a.dim;
    const float* __restrict g = a.g;
    *count += 1.0f;
    const bool by_row = a.step == kNoStep || s[7] == float(CountedBy::row);
    const Corrections c = by_row ? AdamCorrections::tabulated(*a.settings, *count) : a.corrections;
    const float rate = a.rate * c.first, second = c.second;
    for (int i = 0; i < a.dim; ++i) {
      const float x = g[i] + decay * w[i];
      m[i] += (x - m[i]) * rest1;
      v[i] = v[i] * beta2 + rest2 * (x * x);
      float square = v[i];
      if (kMaximum) square = vmax[i] = std::max(vmax[i], v[i]);
      w[i] = w[i] * shrink - ratio(rate * m[i], std::sqrt(square) * second + epsilon);
    }
  }
};

// How far a row of dense Adam moves without a gradient, in units of rate * m / root of v.
//
// Update number t without a gradient multiplies m by beta1 and the root of v by that of beta2, and
// moves the row by c(t) = sqrt(1 - beta2^t) / (1 - beta1^t) times m / root of v. With `ratio` the
// quotient of the two factors, all updates after number s move it by
//   D(s) = ratio c(s+1) + ratio^2 c(s+2) + ... = ratio (c(s+1) + D(s+1)),
// and the next k of them by D(s) - ratio^k D(s+k). Where c hardly changes any more, D(s) is the
// sum of the powers of `ratio` times c at the mean of their exponents.
struct Drift {
  static constexpr int kTabulated = 1 << 12;
  static constexpr int kPieces =
      5;  // of a gap, each twice as long as the one before; then the rest
  double beta1, beta2, ratio, faded;

  Drift(const RuleSettings& settings, bool maximum)
      : beta1(settings.exact[0]),
        beta2(settings.exact[2]),
        ratio(maximum ? beta1 : beta1 / std::sqrt(beta2)),
        faded(maximum ? 1.0 : std::sqrt(beta2)) {}

  double pace(double t) const {
    return std::sqrt(1.0 - std::pow(beta2, t)) / (1.0 - std::pow(beta1, t));
  }
  double far_out(double s) const { return ratio / (1.0 - ratio) * pace(s + 1.0 / (1.0 - ratio)); }
  double after(const RuleSettings& settings, i64 s) const {
    return s <= kTabulated ? (*settings.drift)[u64(s)] : far_out(double(s));
  }

  // Where most of the movement of the next k updates has happened.
  double middle(double k) const { return std::min((k + 1.0) / 2.0, 1.0 / (1.0 - ratio)); }

  // What epsilon is multiplied with when it stands beside the root of v as update s left it: a
  // number that hardly differs between the next k updates, taken in their middle.
  double of_epsilon(double s, double k) const {
    return std::sqrt(1.0 - std::pow(beta2, s + middle(k))) / std::pow(faded, middle(k));
  }

  std::vector<double> table() const {
    std::vector<double> found(kTabulated + 1);
    found[kTabulated] = far_out(kTabulated);
    for (int s = kTabulated - 1; s >= 0; --s) found[s] = ratio * (pace(s + 1) + found[s + 1]);
    return found;
  }
};

// State: m, v, [vmax,] number of the row's last update as int64, in two floats' room. What updates
// without a gradient would have done since then is done first.
template <bool kMaximum>
struct DenseAdamRule {
  static constexpr const char* kName = kMaximum ? "dense_amsgrad" : "dense_adam";
  static constexpr int kSettings = 8;
  static constexpr auto kState = state_floats < kMaximum ? 3 : 2, 2 > ;

  static void prepare(RuleSettings& settings) {
    using Table = std::vector<double>;
    static std::mutex mutex;
    static std::map<std::pair<double, double>, std::weak_ptr<const Table>> tables;
    const std::lock_guard hold(mutex);
    auto& known = tables[{settings.exact[0], settings.exact[2]}];
    settings.drift = known.lock();
    if (!settings.drift)
      known = settings.drift = std::make_shared<const Table>(Drift(settings, kMaximum).table());
  }

  static Corrections corrections(const RuleSettings& settings, i64 step) {
    return AdamCorrections::at_step(settings, step);
  }

  static HR_INLINE void run(const StepArgs& a) {
    const float* s = a.settings->value.data();
    const float rest1 = s[1], beta2 = s[2], rest2 = s[3], epsilon = s[4];
    const float shrink = 1.0f - a.rate * s[5];
    float* __restrict w = a.w;
    float* __restrict m = a.state;
    float* __restrict v = a.state + a.dim;
    float* __restrict vmax = a.state + 2 * a.dim;  // only touched when kMaximum
    const float* __restrict g = a.g;
    u8* const last_at = reinterpret_cast<u8*>(a.state + (kMaximum ? 3 : 2) * a.dim);
    i64 last;
    std::memcpy(&last, last_at, sizeof(last));
    if (last > 0 && last < a.step) make_up(a, last);
    const i64 now = std::max(last, a.step + 1);
    std::memcpy(last_at, &now, sizeof(now));
    const float rate = a.rate * a.corrections.first, second = a.corrections.second;
    for (int i = 0; i < a.dim; ++i) {
      m[i] += (g[i] - m[i]) * rest1;
      v[i] = v[i] * beta2 + rest2 * (g[i] * g[i]);
      float square = v[i];
      if (kMaximum) square = vmax[i] = std::max(vmax[i], v[i]);
      w[i] = w[i] * shrink - ratio(rate * m[i], std::sqrt(square) * second + epsilon);
    }
  }

  // The updates without a gradient between number `last` and the present one, in pieces of 1, 2, 4,
  // 8 and 16 and the rest: in each, epsilon stands as in its middle.
  static void make_up(const StepArgs& a, i64 last) {
    for (int piece = 0; last < a.step; ++piece) {
      const i64 left = a.step - last;
      const i64 count = piece < Drift::kPieces ? std::min(left, i64(1) << piece) : left;
      make_up(a, last, count);
      last += count;
    }
  }

  static void make_up(const StepArgs& a, i64 last, i64 count) {
    const RuleSettings& settings = *a.settings;
    const double missed = double(count);
    const Drift drift(settings, kMaximum);
    const double moved = drift.after(settings, last) -
                         std::pow(drift.ratio, missed) * drift.after(settings, last + count);
    const double fade = 1.0 - double(a.rate) * settings.exact[5];
    const float rate = float(a.rate * moved * std::pow(fade, missed - drift.middle(missed)));
    const float keep1 = float(std::pow(drift.beta1, missed));
    const float keep2 = float(std::pow(drift.beta2, missed));
    const float shrink = float(std::pow(fade, missed));
    const float epsilon = float(settings.exact[4] * drift.of_epsilon(double(last), missed));
    float* m = a.state;
    float* v = a.state + a.dim;
    const float* square = kMaximum ? a.state + 2 * a.dim : v;
    for (int i = 0; i < a.dim; ++i) {
      a.w[i] = a.w[i] * shrink - ratio(rate * m[i], std::sqrt(square[i]) + epsilon);
      m[i] *= keep1;
      v[i] *= keep2;
    }
  }
};

}  // namespace hedgerow::rules
