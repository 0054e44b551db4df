// Reads bags: rows of some thousand ids go to memory of the thread, and from there into vectors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bags.h"
#include "isa.h"
#include "plan.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kTaskIds = 4096;                  // read by one thread, below what a table shares out
constexpr u64 kRoomBytes = u64(128) << 10;      // of rows on their way: they stay in a core's cache
constexpr u64 kLeastIds = 32, kMostIds = 2048;  // of them
constexpr u64 kWholeIds = u64(1) << 16;         // of a feature whose rows go out as they are

// Rows of consecutive ids, which belong to consecutive bags, added to the vectors of those bags.
struct PoolArgs {
  const float* rows;  // of ids from .. from + n
  const float* weights;
  u64 from;
  u64 n;
  const i64* borders;  // of bags
  u64 bag;             // the first of which there are ids
  u64 dim;
  u64 first;
  float* out;  // of all bags, zeros where no id was before
  u32* best;   // of `max`: [bags, dim]
  u32 base;    // the number of the feature's first id, for `best`
};

// Calls body(bag, ids of the bag that came before, first row, how many) for each bag with rows.
HR_INLINE void each_bag(const PoolArgs& args, const auto& body) {
  u64 at = args.from;
  for (u64 bag = args.bag; at < args.from + args.n; ++bag) {
    const u64 end = std::min(u64(args.borders[bag + 1]), args.from + args.n);
    if (end <= at) continue;
    body(bag, at - u64(args.borders[bag]), at, end - at);
    at = end;
  }
}

struct AddBody {
  static HR_INLINE void run(const PoolArgs& args) {
    each_bag(args, [&](u64 bag, u64, u64 first, u64 n) {
      float* __restrict out = args.out + bag * args.dim;
      const float* __restrict row = args.rows + (first - args.from) * args.dim;
      for (u64 i = 0; i < n; ++i, row += args.dim) {
        if (args.weights == nullptr) {
          for (u64 c = 0; c < args.dim; ++c) out[c] += row[c];
        } else {
          const float weight = args.weights[first + i];
          for (u64 c = 0; c < args.dim; ++c) out[c] += row[c] * weight;
        }
      }
    });
  }
};

// Of equal values the first counts: it alone gets the gradient.
struct MaxBody {
  static HR_INLINE void run(const PoolArgs& args) {
    each_bag(args, [&](u64 bag, u64 before, u64 first, u64 n) {
      float* out = args.out + bag * args.dim;
      for (u64 i = 0; i < n; ++i) {
        const float weight = args.weights == nullptr ? 1.0f : args.weights[first + i];
        const float* row = args.rows + (first + i - args.from) * args.dim;
        for (u64 c = 0; c < args.dim; ++c) {
          const float value = row[c] * weight;
          if (before + i != 0 && !(value > out[c])) continue;
          out[c] = value;
          if (args.best != nullptr) args.best[bag * args.dim + c] = u32(first + i - args.base);
        }
      }
    });
  }
};

struct FirstBody {
  static HR_INLINE void run(const PoolArgs& args) {
    each_bag(args, [&](u64 bag, u64 before, u64 first, u64 n) {
      for (u64 i = 0; i < n && before + i < args.first; ++i) {
        float* out = args.out + (bag * args.first + before + i) * args.dim;
        const float* row = args.rows + (first + i - args.from) * args.dim;
        const float weight = args.weights == nullptr ? 1.0f : args.weights[first + i];
        for (u64 c = 0; c < args.dim; ++c) out[c] = row[c] * weight;
      }
    });
  }
};

auto pool_function(Pooling pooling, Isa isa) {
  switch (pooling) {
    case Pooling::max:
      return Variants<MaxBody, const PoolArgs&>::pick(isa);
    case Pooling::first:
      return Variants<FirstBody, const PoolArgs&>::pick(isa);
    default:
      return Variants<AddBody, const PoolArgs&>::pick(isa);
  }
}

bool has_one_id_each(const i64* borders, u64 samples) {
  if (u64(borders[samples] - borders[0]) != samples) return false;
  for (u64 bag = 0; bag < samples; ++bag)
    if (borders[bag + 1] - borders[bag] != 1) return false;
  return true;
}

void divide(Pooling pooling, const i64* borders, u64 first, u64 end, u64 dim, float* out) {
  for (u64 bag = first; bag < end; ++bag) {
    const float count = float(borders[bag + 1] - borders[bag]);
    if (count <= 1) continue;
    const float by = pooling == Pooling::mean ? count : std::sqrt(count);
    for (u64 c = 0; c < dim; ++c) out[bag * dim + c] /= by;
  }
}

}  // namespace

// Bags (of `none`: ids) of one feature that one thread reads.
struct Bags::Part {
  u64 feature;
  u64 first;
  u64 end;
};

Bags::Bags(std::vector<Feature> features, std::vector<u64> tables)
    : features_(std::move(features)) {
  for (u64 f = 0; f < features_.size(); ++f) {
    if (tables.at(f) >= by_table_.size()) by_table_.resize(tables[f] + 1);
    by_table_[tables[f]].push_back(f);
  }
}

void Bags::check_size(u64 given) const {
  if (given != size())
    throw std::invalid_argument(std::to_string(given) + " values for " + std::to_string(size()) +
                                " features");
}

void Bags::check(const IdCells& cells) const {
  for (u64 f = 0; f < size(); ++f) {
    const i64* borders = cells.borders(f);
    if (borders[0] < 0 || u64(borders[cells.samples]) > cells.n ||
        !std::is_sorted(borders, borders + cells.samples + 1))
      throw std::invalid_argument("offsets of a batch must rise from 0 to its " +
                                  std::to_string(cells.n) + " ids");
  }
}

void Bags::read(const IdCells& cells, const Part& part, Phase phase, i64 step, float* out,
                OutputMemory memory, BagRows* keep) const {
  static thread_local Buffer<float> room;
  const Feature& feature = features_[part.feature];
  const i64* const borders = cells.borders(part.feature);
  const u64 dim = feature.dim(), base = u64(borders[0]);
  const Missing missing = phase == Phase::training ? feature.in_training : Missing::zeros;
  const auto look_up = [&](u64 from, u64 n, float* into, OutputMemory into_memory) {
    const i64* const ids = cells.ids + from;
    if (keep == nullptr) return feature.table->lookup(ids, n, missing, step, into, into_memory);
    const u64 at = keep->cells().first_of(part.feature) + (from - base);
    i64* const own = keep->ids.get() + at;
    parallel_for(i64((n + kWholeIds - 1) / kWholeIds), [&](i64 task) {
      const u64 start = u64(task) * kWholeIds;
      std::copy_n(ids + start, std::min(kWholeIds, n - start), own + start);
    });
    feature.table->lookup(own, n, missing, step, into, into_memory, nullptr, keep->rows.get() + at);
  };
  if (feature.pooling == Pooling::none)
    return look_up(base + part.first, part.end - part.first, out + part.first * dim, memory);
  const bool plain = cells.weights == nullptr && feature.pooling != Pooling::first;
  if (plain && has_one_id_each(borders + part.first, part.end - part.first)) {
    if (feature.pooling == Pooling::max && keep != nullptr)
      for (u64 bag = part.first; bag < part.end; ++bag)
        std::fill_n(keep->best[part.feature].data() + bag * dim, dim,
                    u32(u64(borders[bag]) - base));
    return look_up(u64(borders[part.first]), part.end - part.first, out + part.first * dim, memory);
  }
  const u64 bag_floats = dim * (feature.pooling == Pooling::first ? feature.first : 1);
  std::fill(out + part.first * bag_floats, out + part.end * bag_floats, 0.0f);
  const u64 most = std::clamp(kRoomBytes / (sizeof(float) * dim), kLeastIds, kMostIds);
  room.ensure(most * dim);
  const auto pool = pool_function(feature.pooling, active_isa());
  u32* const best = keep == nullptr || feature.pooling != Pooling::max
                        ? nullptr
                        : keep->best[part.feature].data();
  u64 bag = part.first;
  for (u64 from = u64(borders[part.first]); from < u64(borders[part.end]);) {
    const u64 n = std::min(most, u64(borders[part.end]) - from);
    look_up(from, n, room.data(), OutputMemory::reused);
    while (u64(borders[bag + 1]) <= from) ++bag;
    pool({room.data(), cells.weights, from, n, borders, bag, dim, feature.first, out, best,
          u32(base)});
    from += n;
  }
  if (feature.pooling == Pooling::mean || feature.pooling == Pooling::sqrtn)
    divide(feature.pooling, borders, part.first, part.end, dim, out);
}

// Makes room for what a lookup keeps. Ids come with their rows.
void Bags::prepare(const IdCells& cells, BagRows& found) const {
  found.samples = cells.samples;
  found.offsets = std::make_unique_for_overwrite<i64[]>(size() * cells.samples + 1);
  i64 ids = 0;
  for (u64 f = 0; f < size(); ++f) {
    const i64 *const borders = cells.borders(f), moved = ids - borders[0];
    std::transform(borders, borders + cells.samples, found.offsets.get() + f * cells.samples,
                   [=](i64 border) { return border + moved; });
    ids += i64(cells.count_of(f));
    found.places.push_back(f);
    found.changes.push_back(features_[f].table->changes());
    found.best.emplace_back();
    if (features_[f].pooling == Pooling::max)
      found.best[f].assign(cells.samples * features_[f].dim(), BagRows::kNoId);
  }
  found.offsets[i64(size() * cells.samples)] = ids;
  found.ids = std::make_unique_for_overwrite<i64[]>(u64(ids));
  found.rows = std::make_unique_for_overwrite<u32[]>(u64(ids));
  if (cells.weights == nullptr) return;
  found.weights = std::make_unique_for_overwrite<float[]>(u64(ids));
  for (u64 f = 0; f < size(); ++f)
    std::copy_n(cells.weights + cells.first_of(f), cells.count_of(f),
                found.weights.get() + found.cells().first_of(f));
}

void Bags::lookup(const IdCells& cells, Phase phase, i64 step, std::span<float* const> outs,
                  OutputMemory memory, BagRows* found) const {
  check_size(cells.cells.size());
  check_size(outs.size());
  check(cells);
  if (found != nullptr) prepare(cells, *found);
  const CallScope scope;
  std::vector<Part> parts;
  u64 ids = 0;
  for (u64 f = 0; f < size(); ++f) {
    const i64* const borders = cells.borders(f);
    const u64 many = cells.count_of(f);
    ids += many;
    if (features_[f].pooling == Pooling::none) {
      if (many >= kWholeIds) {  // the table shares them out by itself
        read(cells, {f, 0, many}, phase, step, outs[f], memory, found);
      } else {
        for (u64 at = 0; at < many; at += kTaskIds)
          parts.push_back({f, at, std::min(many, at + kTaskIds)});
      }
      continue;
    }
    for (u64 bag = 0; bag < cells.samples;) {
      const i64 wanted = borders[bag] + i64(kTaskIds);
      u64 end = std::min(cells.samples, bag + kTaskIds);
      if (borders[end] > wanted)
        end = std::max(bag + 1,
                       u64(std::upper_bound(borders + bag, borders + end, wanted) - borders - 1));
      parts.push_back({f, bag, end});
      bag = end;
    }
  }
  const RunAlone alone(ids < kAloneIds);
  parallel_for(i64(parts.size()), [&](i64 task) {
    const Part& part = parts[u64(task)];
    read(cells, part, phase, step, outs[part.feature], memory, found);
  });
}

}  // namespace hedgerow
