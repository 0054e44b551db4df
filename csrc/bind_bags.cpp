// The bags of several features for Python. Features keep their tables alive.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bags.h"
#include "bind.h"

namespace hedgerow {
namespace {

// A feature as Python gives it: table, its number, pooling, rows that `first` keeps, whether absent
// ids give their first values in training.
using GivenFeature = std::tuple<std::shared_ptr<Table>, u64, std::string, u64, bool>;
// Ids, how many, offsets, cells, samples, weights.
using GivenCells = std::tuple<Address, u64, Address, std::vector<u64>, u64, Address>;
// Of each feature an address, 0 for none, and the strides of bags, of what `first` keeps, of
// columns: one list, as many small ones would wake Python's garbage collector.
using GivenGrads = std::vector<i64>;

Pooling pooling_named(const std::string& name) {
  if (name == "none") return Pooling::none;
  if (name == "sum") return Pooling::sum;
  if (name == "mean") return Pooling::mean;
  if (name == "sqrtn") return Pooling::sqrtn;
  if (name == "max") return Pooling::max;
  if (name == "first") return Pooling::first;
  throw std::invalid_argument("pooling is '" + name + "'");
}

struct HeldBags {
  std::vector<std::shared_ptr<Table>> tables;
  Bags bags;
};

IdCells cells_of(const GivenCells& given) {
  const auto& [ids, n, offsets, cells, samples, weights] = given;
  return {at<i64>(ids), n, at<i64>(offsets), cells, samples, at<float>(weights)};
}

std::vector<BagGrad> grads_of(const GivenGrads& given) {
  std::vector<BagGrad> grads;
  for (u64 i = 0; i + 3 < given.size(); i += 4)
    grads.push_back({at<float>(Address(given[i])), {given[i + 1], given[i + 2], given[i + 3]}});
  return grads;
}

HeldBags make(const std::vector<GivenFeature>& given) {
  HeldBags made{{}, {{}, {}}};
  std::vector<Feature> features;
  std::vector<u64> numbers;
  for (const auto& [table, number, pooling, first, gives_first] : given) {
    made.tables.push_back(table);
    features.push_back({table.get(), pooling_named(pooling), first,
                        gives_first ? Missing::first_value : Missing::zeros});
    numbers.push_back(number);
  }
  made.bags = Bags(std::move(features), std::move(numbers));
  return made;
}

std::unique_ptr<BagRows> look_up(const HeldBags& self, const GivenCells& given, bool training,
                                 i64 step, const std::vector<Address>& outs, bool reused,
                                 bool keeps) {
  const nb::gil_scoped_release release;
  const IdCells cells = cells_of(given);
  std::vector<float*> rooms;
  for (const Address out : outs) rooms.push_back(at<float>(out));
  std::unique_ptr<BagRows> found = keeps ? std::make_unique<BagRows>() : nullptr;
  self.bags.lookup(cells, training ? Phase::training : Phase::inference, step, rooms,
                   reused ? OutputMemory::reused : OutputMemory::fresh, found.get());
  return found;
}

std::tuple<i64, i64, i64> not_finite(const HeldBags& self, const BagRows& found,
                                     const GivenGrads& grads, const std::vector<u8>& rejects) {
  const nb::gil_scoped_release release;
  const std::vector<BagGrad> places = grads_of(grads);
  const NotFinite first = self.bags.not_finite(found, places, rejects);
  return {first.feature, first.bag, first.column};
}

std::tuple<i64, i64, i64> learn(
    const std::vector<std::tuple<const HeldBags*, const BagRows*, GivenGrads>>& given, i64 step,
    const std::vector<std::vector<float>>& rates, const std::vector<i64>& times, float clip) {
  const nb::gil_scoped_release release;
  std::vector<BagsLearned> learned;
  for (const auto& [self, found, grads] : given) {
    learned.push_back({&self->bags, found, grads_of(grads)});
  }
  if (times.size() != rates.size())
    throw std::invalid_argument("rates and times must be one a table");
  std::vector<TableStep> steps;
  for (u64 t = 0; t < rates.size(); ++t) steps.push_back({rates[t], times[t]});
  const Applied done = learn_bags(learned, step, steps, clip);
  return {done.inserted, done.refused, done.dropped};
}

}  // namespace

void bind_bags(nb::module_& m) {
  nb::class_<BagRows>(m, "BagRows")
      .def("count", [](const BagRows& self, u64 f) { return self.cells().count_of(f); })
      .def("ids",
           [](const BagRows& self, u64 f, Address out) {
             const IdCells cells = self.cells();
             std::copy_n(cells.ids + cells.first_of(f), cells.count_of(f), at<i64>(out));
           })
      .def("rows", [](const BagRows& self, u64 f, Address out) {
        const IdCells cells = self.cells();
        std::copy_n(self.rows.get() + cells.first_of(f), cells.count_of(f), at<u32>(out));
        return self.changes.at(f);
      });
  m.def("learn_bags", &learn);
  nb::class_<HeldBags>(m, "Bags")
      .def(
          "__init__",
          [](HeldBags* self, const std::vector<GivenFeature>& features) {
            new (self) HeldBags(make(features));
          },
          "features"_a)
      .def("lookup", &look_up)
      .def("not_finite", &not_finite)
      .def("spread", [](const HeldBags& self, const BagRows& found, u64 feature,
                        const GivenGrads& grad, Address out) {
        const nb::gil_scoped_release release;
        self.bags.spread(found, feature, grads_of(grad).at(0), at<float>(out));
      });
}

}  // namespace hedgerow
