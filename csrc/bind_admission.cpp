// Admission rules and their filter for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "admission.h"
#include "bind.h"
#include "sliding_filter.h"

namespace hedgerow {
namespace {

using ArrayShape = std::tuple<u64, u64, u64>;  // bytes of a cell, cells, used ones

void bind_filter(nb::module_& m) {
  nb::class_<SlidingFilter>(m, "SlidingFilter")
      .def(
          "__init__",
          [](SlidingFilter* self, u64 capacity, u64 parts, u64 seed, u32 max_count, u64 key) {
            new (self) SlidingFilter({capacity, parts, seed, max_count}, key);
          },
          "capacity"_a, "parts"_a, "seed"_a, "max_count"_a, "key"_a = 0)
      .def(
          "add_many",
          [](SlidingFilter& f, u64 table, Address ids, Address occurrences, u64 n, Address before) {
            f.add_many(table, at<i64>(ids), at<i64>(occurrences), n, at<u8>(before));
          },
          unlocked)
      .def(
          "count_many",
          [](const SlidingFilter& f, u64 table, Address ids, u64 n, Address out) {
            f.count_many(table, at<i64>(ids), n, at<u8>(out));
          },
          unlocked)
      .def("memory", &SlidingFilter::bytes, unlocked)
      .def("dump",
           [](const SlidingFilter& f, u64 room, Address out) {
             SlidingFilter::State state;
             {
               const nb::gil_scoped_release release;
               state = f.dump(room, at<u8>(out));
             }
             std::vector<ArrayShape> arrays;
             for (const CountArray::Shape& shape : state.arrays)
               arrays.emplace_back(shape.cell_bytes, shape.cells, shape.size);
             return std::tuple(state.key, state.head, state.head_increment, state.failures, arrays);
           })
      .def("restore", [](SlidingFilter& f, u64 key, u64 head, u64 head_increment, u64 failures,
                         const std::vector<ArrayShape>& arrays, Address from, u64 bytes) {
        SlidingFilter::State state{key, head, head_increment, failures, {}};
        for (const auto& [cell_bytes, cells, size] : arrays)
          state.arrays.push_back({cell_bytes, cells, size});
        const nb::gil_scoped_release release;
        f.restore(state, at<u8>(from), bytes);
      });
}

}  // namespace

void bind_admission(nb::module_& m) {
  bind_filter(m);
  using Slots = std::vector<std::pair<u32, double>>;
  nb::class_<Admission>(m, "Admission")
      .def(
          "ask",
          [](Admission& a, Address ids, Address occurrences, u64 n, i64 step, Address admitted) {
            a.ask_each(at<i64>(ids), at<i64>(occurrences), n, step, at<u8>(admitted));
          },
          unlocked);
  nb::class_<CountAdmission, Admission>(m, "CountAdmission")
      .def(
          "__init__",
          [](CountAdmission* self, std::shared_ptr<SlidingFilter> filter, u64 table,
             double threshold, const Slots& slots) {
            new (self) CountAdmission(std::move(filter), table, {threshold, slots});
          },
          "filter"_a, "table"_a, "threshold"_a, "slots"_a);
  nb::class_<ChanceAdmission, Admission>(m, "ChanceAdmission")
      .def(
          "__init__",
          [](ChanceAdmission* self, const std::string& form, u64 seed, double parameter,
             const Slots& slots) {
            new (self) ChanceAdmission(chance_form(form), seed, {parameter, slots});
          },
          "form"_a, "seed"_a, "parameter"_a, "slots"_a);
  m.def("admission_probability", [](const std::string& form, double parameter, u64 occurrences) {
    return admission_probability(chance_form(form), parameter, occurrences);
  });
}

}  // namespace hedgerow
