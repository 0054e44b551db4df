// The bags of several features, over the tables of one process: read in one call, learnt in one.
//
// A lookup reads the rows of all features and pools them; it keeps where the rows were, so that the
// update searches for none. The update takes gradients as they lie, by address and strides: equal
// ids of a table are summed in the order of features and bags, each gradient where it is.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "table.h"

namespace hedgerow {

enum class Pooling { none, sum, mean, sqrtn, max, first };

struct Feature {
  Table* table;
  Pooling pooling;
  u64 first;            // rows of a bag that `first` keeps
  Missing in_training;  // what an absent id gives in training; else it gives zeros

  u64 dim() const { return u64(table->layout().dim); }
};

// The ids of a batch: those of bag b of cell c are offsets[c * samples + b] up to the next.
struct IdCells {
  const i64* ids;
  u64 n;
  const i64* offsets;
  std::span<const u64> cells;  // of each feature
  u64 samples;
  const float* weights;  // one an id, or null

  const i64* borders(u64 feature) const { return offsets + cells[feature] * samples; }
  u64 first_of(u64 feature) const { return u64(borders(feature)[0]); }
  u64 count_of(u64 feature) const { return u64(borders(feature)[samples]) - first_of(feature); }
};

// What a lookup read and found, for the update that follows. Ids are its own: row numbers that were
// taken for those of other ids would put a key into the index twice.
struct BagRows {
  u64 samples = 0;
  std::vector<u64> places;             // of the features: 0, 1, ...
  std::unique_ptr<i64[]> ids;          // feature after feature
  std::unique_ptr<i64[]> offsets;      // of them
  std::unique_ptr<float[]> weights;    // or null
  std::unique_ptr<u32[]> rows;         // of the ids
  std::vector<u64> changes;            // of each feature's table
  std::vector<std::vector<u32>> best;  // of `max`: which id gave each value, or kNoId
  static constexpr u32 kNoId = 0xffffffff;

  u64 n() const { return u64(offsets[i64(places.size() * samples)]); }
  IdCells cells() const { return {ids.get(), n(), offsets.get(), places, samples, weights.get()}; }
};

// A gradient of the vectors of a feature; null: none.
struct BagGrad {
  const float* at;
  i64 strides[3];  // in floats: of bags (or ids), of what `first` keeps, of columns
};

// The place of the first gradient that is not finite: feature, bag and column, of `first` among
// those of all that it keeps; feature < 0: none.
struct NotFinite {
  i64 feature = -1, bag = 0, column = 0;
};

// What a batch is read for.
enum class Phase { training, inference };

// How one table is stepped.
struct TableStep {
  std::span<const float> rates;
  i64 time;
};

class Bags {
 public:
  // `tables`: the number of each feature's table, from 0, among those that an update may step.
  Bags(std::vector<Feature> features, std::vector<u64> tables);

  u64 size() const { return features_.size(); }
  // Throw std::invalid_argument: for offsets that do not fit the ids, and unless there is one value
  // per feature.
  void check(const IdCells& cells) const;
  void check_size(u64 given) const;
  std::span<const u64> features_of(u64 table) const {
    return table < by_table_.size() ? by_table_[table] : std::span<const u64>();
  }
  const Feature& feature(u64 f) const { return features_[f]; }

  // One output per feature: [samples, dim], [samples, first, dim] or, of `none`, [ids, dim].
  // `found`: what an update will need, or null.
  void lookup(const IdCells& cells, Phase phase, i64 step, std::span<float* const> outs,
              OutputMemory memory, BagRows* found) const;

  // The first gradient that a table which rejects such may not take.
  NotFinite not_finite(const BagRows& found, std::span<const BagGrad> grads,
                       std::span<const u8> rejects) const;

  // Gradients [ids, dim] of the ids of one feature.
  void spread(const BagRows& found, u64 feature, const BagGrad& grad, float* out) const;

 private:
  struct Part;
  void prepare(const IdCells& cells, BagRows& found) const;
  void read(const IdCells& cells, const Part& part, Phase phase, i64 step, float* out,
            OutputMemory memory, BagRows* keep) const;

  std::vector<Feature> features_;
  std::vector<std::vector<u64>> by_table_;  // the features of each table, in their order
};

// What one lookup of bags found, and the gradients that came back.
struct BagsLearned {
  const Bags* bags;
  const BagRows* found;
  std::vector<BagGrad> grads;
};

// One optimizer step for every row whose id has a gradient in any of these, table after table; the
// gradients of equal ids are summed in the order of lookups, features and bags. `clip`: a summed
// gradient that is longer is made so long; 0: none is.
Applied learn_bags(std::span<const BagsLearned> learned, i64 step, std::span<const TableStep> steps,
                   float clip);

}  // namespace hedgerow
