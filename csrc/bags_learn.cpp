// Updates from gradients of bags: each id of a table is told where its gradient lies.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "bags.h"
#include "finite.h"
#include "plan.h"

namespace hedgerow {
namespace {

constexpr u64 kKeptBytes = u64(1) << 20;  // of a thread's memory, between calls

// What one table's update reads; memory of the thread.
struct Gathered {
  Buffer<i64> ids;
  Buffer<u32> rows;
  Buffer<const float*> grads;
  Buffer<float> scale;
  std::vector<Buffer<float>> made;  // gradients that do not lie anywhere, of each feature
  std::vector<float> zeros;

  static Gathered& of_this_thread() {
    static thread_local Gathered gathered;
    return gathered;
  }
  void trim() {
    ids.keep_at_most(kKeptBytes);
    rows.keep_at_most(kKeptBytes);
    grads.keep_at_most(kKeptBytes);
    scale.keep_at_most(kKeptBytes);
    for (Buffer<float>& one : made) one.keep_at_most(kKeptBytes);
  }
};

// However an update ends, the memory of an unusually large one is let go.
struct Trim {
  Gathered& room;
  ~Trim() { room.trim(); }
};

// How many gradients a bag has: one, of `first` some, and one for each id where there are no bags.
u64 units_of(const Feature& feature, const IdCells& cells, u64 f) {
  return feature.pooling == Pooling::none ? cells.count_of(f) : cells.samples;
}

void copy_strided(const float* from, i64 stride, u64 n, float* to) {
  if (stride == 1) {
    std::memcpy(to, from, sizeof(float) * n);
  } else {
    for (u64 c = 0; c < n; ++c) to[c] = from[i64(c) * stride];
  }
}

// Where the gradient of each unit lies as `dim` floats side by side: where autograd left it, or a
// copy in `made`.
struct UnitGrads {
  const float* at;
  i64 stride;
  const float* of(u64 unit) const { return at + i64(unit) * stride; }
};

UnitGrads unit_grads(const Feature& feature, const IdCells& cells, u64 f, const BagGrad& grad,
                     Buffer<float>& made) {
  const u64 dim = feature.dim(), units = units_of(feature, cells, f);
  const bool divides = feature.pooling == Pooling::mean || feature.pooling == Pooling::sqrtn;
  const i64* const borders = cells.borders(f);
  if (grad.strides[2] == 1 && !divides) return {grad.at, grad.strides[0]};
  const bool all_equal = grad.strides[0] == 0 && !divides;
  const u64 copies = all_equal ? std::min(units, u64(1)) : units;
  float* const room = made.ensure(std::max(copies * dim, dim));
  for (u64 unit = 0; unit < copies; ++unit) {
    float* const to = room + unit * dim;
    copy_strided(grad.at + i64(unit) * grad.strides[0], grad.strides[2], dim, to);
    if (!divides) continue;
    const float count = float(borders[unit + 1] - borders[unit]);
    if (count <= 1) continue;
    const float by = feature.pooling == Pooling::mean ? count : std::sqrt(count);
    for (u64 c = 0; c < dim; ++c) to[c] /= by;
  }
  return {room, all_equal ? 0 : i64(dim)};
}

// The gradient of each id of a feature, `out` [ids].
void grads_of_ids(const Feature& feature, const IdCells& cells, u64 f, const BagGrad& grad,
                  const std::vector<u32>& best, Gathered& room, Buffer<float>& made,
                  const float** out) {
  const u64 dim = feature.dim(), base = cells.first_of(f), n = cells.count_of(f);
  const i64* const borders = cells.borders(f);
  if (room.zeros.size() < dim) room.zeros.resize(dim);
  if (feature.pooling == Pooling::max) {
    float* const each = made.ensure(std::max(n, u64(1)) * dim);
    std::fill_n(each, n * dim, 0.0f);
    for (u64 bag = 0; bag < cells.samples; ++bag) {
      for (u64 c = 0; c < dim; ++c) {
        const u32 id = best[bag * dim + c];
        if (id == BagRows::kNoId) continue;
        each[id * dim + c] = grad.at[i64(bag) * grad.strides[0] + i64(c) * grad.strides[2]];
      }
    }
    for (u64 i = 0; i < n; ++i) out[i] = each + i * dim;
    return;
  }
  if (feature.pooling == Pooling::first) {
    const bool copies = grad.strides[2] != 1;
    float* const each = copies ? made.ensure(std::max(n, u64(1)) * dim) : nullptr;
    for (u64 bag = 0; bag < cells.samples; ++bag) {
      for (u64 i = u64(borders[bag]); i < u64(borders[bag + 1]); ++i) {
        const u64 place = i - u64(borders[bag]);
        if (place >= feature.first) {
          out[i - base] = room.zeros.data();
          continue;
        }
        const float* const at = grad.at + i64(bag) * grad.strides[0] + i64(place) * grad.strides[1];
        out[i - base] = at;
        if (!copies) continue;
        copy_strided(at, grad.strides[2], dim, each + (i - base) * dim);
        out[i - base] = each + (i - base) * dim;
      }
    }
    return;
  }
  const UnitGrads units = unit_grads(feature, cells, f, grad, made);
  if (feature.pooling == Pooling::none) {
    for (u64 i = 0; i < n; ++i) out[i] = units.of(i);
    return;
  }
  for (u64 bag = 0; bag < cells.samples; ++bag)
    for (u64 i = u64(borders[bag]); i < u64(borders[bag + 1]); ++i) out[i - base] = units.of(bag);
}

// A feature with gradients, of one of several lookups.
struct Given {
  const BagsLearned* of;
  u64 feature, ids;

  u64 first() const { return of->found->cells().first_of(feature); }
  const i64* own_ids() const { return of->found->ids.get() + first(); }
  const u32* rows() const { return of->found->rows.get() + first(); }
  const float* weights() const {
    const float* const all = of->found->weights.get();
    return all == nullptr ? nullptr : all + first();
  }
  u64 changes() const { return of->found->changes[feature]; }
};

// The features of one table that have ids and gradients, lookup after lookup.
std::vector<Given> given_to(u64 table, std::span<const BagsLearned> learned) {
  std::vector<Given> given;
  for (const BagsLearned& one : learned) {
    for (u64 f : one.bags->features_of(table)) {
      const u64 ids = one.found->cells().count_of(f);
      if (one.grads[f].at != nullptr && ids != 0) given.push_back({&one, f, ids});
    }
  }
  return given;
}

// The ids of one table, and where their gradients and rows are: as they lie, of one feature; of
// several in the memory of the thread, one after the other.
std::span<const i64> gather(const std::vector<Given>& given, Gathered& room, Update& update,
                            KnownRows& known) {
  u64 n = 0;
  bool weighted = false, all_known = true;
  for (const Given& one : given) {
    n += one.ids;
    weighted = weighted || one.weights() != nullptr;
    all_known = all_known && one.changes() == given[0].changes();
  }
  if (room.made.size() < given.size()) room.made.resize(given.size());
  const float** const at = room.grads.ensure(n);
  const bool alone = given.size() == 1;
  i64* const ids = alone ? nullptr : room.ids.ensure(n);
  u32* const rows = alone ? nullptr : room.rows.ensure(n);
  float* const scale = alone || !weighted ? nullptr : room.scale.ensure(n);
  u64 done = 0;
  for (u64 k = 0; k < given.size(); done += given[k++].ids) {
    const Given& one = given[k];
    grads_of_ids(one.of->bags->feature(one.feature), one.of->found->cells(), one.feature,
                 one.of->grads[one.feature], one.of->found->best[one.feature], room, room.made[k],
                 at + done);
    if (alone) continue;
    std::copy_n(one.own_ids(), one.ids, ids + done);
    std::copy_n(one.rows(), one.ids, rows + done);
    if (scale == nullptr) continue;
    if (one.weights() != nullptr) {
      std::copy_n(one.weights(), one.ids, scale + done);
    } else {
      std::fill_n(scale + done, one.ids, 1.0f);
    }
  }
  known = {alone ? given[0].rows() : rows, given[0].changes()};
  update.known = all_known ? &known : nullptr;
  update.grad_at = at;
  update.scale = alone ? given[0].weights() : scale;
  return {alone ? given[0].own_ids() : ids, n};
}

}  // namespace

NotFinite Bags::not_finite(const BagRows& found, std::span<const BagGrad> grads,
                           std::span<const u8> rejects) const {
  check_size(found.places.size());
  check_size(grads.size());
  check_size(rejects.size());
  const IdCells cells = found.cells();
  for (u64 f = 0; f < size(); ++f) {
    const Feature& feature = features_[f];
    if (grads[f].at == nullptr || !rejects[f]) continue;
    const bool none = feature.pooling == Pooling::none, first = feature.pooling == Pooling::first;
    const i64* const borders = cells.borders(f);
    const u64 dim = feature.dim();
    // One gradient for all bags, as of a sum: with weights each may still overflow.
    const bool all_equal = grads[f].strides[0] == 0 && cells.weights == nullptr && !first;
    const auto bad = [&](const float* at, float weight) {
      if (weight == 1.0f && grads[f].strides[2] == 1 && all_finite(at, dim)) return i64(-1);
      for (u64 c = 0; c < dim; ++c)
        if (!std::isfinite(at[i64(c) * grads[f].strides[2]] * weight)) return i64(c);
      return i64(-1);
    };
    for (u64 unit = 0; unit < units_of(feature, cells, f); ++unit) {
      const u64 from = none ? u64(borders[0]) + unit : u64(borders[unit]);
      const u64 ids = none ? 1 : u64(borders[unit + 1]) - from;
      const u64 shown = first ? std::min(ids, feature.first) : std::min(ids, u64(1));
      for (u64 k = 0; k < shown; ++k) {
        float weight = 1.0f;
        if (cells.weights != nullptr) {
          weight = std::abs(cells.weights[from + k]);
          for (u64 i = 1; i < ids && !first && !std::isnan(weight); ++i) {
            const float other = std::abs(cells.weights[from + i]);
            if (!(weight >= other)) weight = other;  // a NaN, too
          }
        }
        const float* const at =
            grads[f].at + i64(unit) * grads[f].strides[0] + i64(k) * grads[f].strides[1];
        if (const i64 column = bad(at, weight); column >= 0)
          return {i64(f), i64(unit), i64(k * dim) + column};
      }
      if (all_equal && shown != 0) break;
    }
  }
  return {};
}

Applied learn_bags(std::span<const BagsLearned> learned, i64 step, std::span<const TableStep> steps,
                   float clip) {
  for (const BagsLearned& one : learned) {
    one.bags->check_size(one.found->places.size());
    one.bags->check_size(one.grads.size());
  }
  Gathered& room = Gathered::of_this_thread();
  const Trim trim{room};
  Applied total;
  for (u64 t = 0; t < steps.size(); ++t) {
    const std::vector<Given> given = given_to(t, learned);
    if (given.empty()) continue;
    Update update{.grads = nullptr,
                  .rates = steps[t].rates.data(),
                  .step = step,
                  .time = steps[t].time,
                  .equal_ids = EqualIds::summed};
    update.clip = clip;
    KnownRows known{};
    const std::span<const i64> ids = gather(given, room, update, known);
    Table& table = *given[0].of->bags->feature(given[0].feature).table;
    total += table.apply_gradients(ids.data(), ids.size(), update);
  }
  return total;
}

void Bags::spread(const BagRows& found, u64 feature, const BagGrad& grad, float* out) const {
  check_size(found.places.size());
  const std::vector<u32>& best = found.best.at(feature);
  const IdCells cells = found.cells();
  Gathered room;
  Buffer<float> made;
  const u64 n = cells.count_of(feature), dim = features_[feature].dim();
  const float** const at = room.grads.ensure(std::max(n, u64(1)));
  grads_of_ids(features_[feature], cells, feature, grad, best, room, made, at);
  for (u64 i = 0; i < n; ++i) {
    const float weight =
        cells.weights == nullptr ? 1.0f : cells.weights[cells.first_of(feature) + i];
    for (u64 c = 0; c < dim; ++c) out[i * dim + c] = at[i][c] * weight;
  }
}

}  // namespace hedgerow
