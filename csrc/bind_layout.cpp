// Layouts and the producer of their indices.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.h"
#include "ops_layout.h"
#include "shard_fids.h"

namespace hedgerow {
namespace {

using Numbers = std::vector<i64>;
using Addresses = std::vector<Address>;

template <class T>
std::vector<T*> all_at(const Addresses& addresses) {
  std::vector<T*> found;
  for (const Address address : addresses) found.push_back(at<T>(address));
  return found;
}

template <class T>
void forward(const LayoutPlan& plan, const LayoutBatch& batch, const Addresses& lists,
             const Addresses& outputs) {
  layout_forward<T>(plan, batch, all_at<const T>(lists), all_at<T>(outputs));
}

template <class T>
void backward(const LayoutPlan& plan, const LayoutBatch& batch, const Addresses& grads,
              double scale, const Addresses& lists) {
  layout_backward<T>(plan, batch, all_at<const T>(grads), T(scale), all_at<T>(lists));
}

// Rows of features as five numbers each: addresses of ids and splits, rows, ids, first row.
std::vector<FeatureRows> rows_of(const Numbers& numbers) {
  std::vector<FeatureRows> features;
  u64 ids = 0;
  for (u64 i = 0; i + 5 <= numbers.size(); i += 5) {
    features.push_back({at<const i64>(Address(numbers[i])), at<const i64>(Address(numbers[i + 1])),
                        u64(numbers[i + 2]), u64(numbers[i + 3]), ids, u64(numbers[i + 4])});
    ids += features.back().count;
  }
  return features;
}

}  // namespace

void bind_layout(nb::module_& m) {
  nb::class_<LayoutPlan>(m, "LayoutPlan")
      .def(nb::init<u64, const Numbers&>(), "features"_a, "numbers"_a)
      .def("features", &LayoutPlan::features)
      .def("outputs", &LayoutPlan::outputs);
  nb::class_<LayoutBatch>(m, "LayoutBatch")
      .def(
          "__init__",
          [](LayoutBatch* self, u64 lists, const Numbers& requests, const Numbers& lengths,
             Address nfl, Address offsets, bool wide, Address ids) {
            new (self)
                LayoutBatch(lists, requests, lengths, at<const i64>(nfl), at<const void>(offsets),
                            wide ? OffsetType::int64 : OffsetType::int32, at<const i64>(ids));
          },
          "lists"_a, "requests"_a, "lengths"_a, "nfl_at"_a, "offsets_at"_a, "wide"_a, "ids_at"_a)
      .def(
          "check",
          [](const LayoutBatch& batch, const LayoutPlan& plan) {
            const LayoutFault found = check_layout(plan, batch);
            return std::tuple(found.kind, found.request, found.feature, found.at, found.value);
          },
          unlocked)
      .def(
          "forward",
          [](const LayoutBatch& batch, const LayoutPlan& plan, bool is_double,
             const Addresses& lists, const Addresses& outputs) {
            (is_double ? forward<double> : forward<float>)(plan, batch, lists, outputs);
          },
          unlocked)
      .def(
          "backward",
          [](const LayoutBatch& batch, const LayoutPlan& plan, bool is_double,
             const Addresses& grads, double scale, const Addresses& lists) {
            (is_double ? backward<double> : backward<float>)(plan, batch, grads, scale, lists);
          },
          unlocked);
  m.def(
      "number_fids",
      [](const Numbers& features, u64 shards, bool unique, Address words, Address offsets,
         Address counts) {
        return number_fids(rows_of(features), shards,
                           unique ? EqualFids::listed_once : EqualFids::listed_each, at<i64>(words),
                           at<int>(offsets), at<i64>(counts));
      },
      unlocked);
  m.def(
      "place_fids",
      [](const Numbers& features, const Numbers& tables, const Numbers& widths, u64 shards,
         Address rows, Address values, Address words, Address fids) {
        std::vector<FeatureLists> lists;
        for (u64 q = 0; q < tables.size(); ++q)
          lists.push_back({u64(tables[q]), u64(widths.at(q))});
        place_fids(rows_of(features), lists, shards, at<const i64>(rows), at<const i64>(values),
                   at<i64>(words), at<i64>(fids));
      },
      unlocked);
}

}  // namespace hedgerow
