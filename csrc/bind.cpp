// The Python module: addresses and sizes in, plain values out, the GIL released. Python has checked
// dtype, device, contiguity and length; the caller keeps its buffers alive during the call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <tuple>

#include "admission.h"
#include "codec.h"
#include "finite.h"
#include "gather.h"
#include "half.h"
#include "initializer.h"
#include "isa.h"
#include "memory.h"
#include "optimizer.h"
#include "philox.h"
#include "pool.h"
#include "rounding.h"
#include "sliding_filter.h"
#include "table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hedgerow {
namespace {

using Address = std::uintptr_t;
using AppliedCounts = std::tuple<i64, i64, i64>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

AppliedCounts counts(const Applied& applied) {
  return {applied.inserted, applied.refused, applied.dropped};
}

SegmentSpec make_segment(int dim, const std::string& init, double init_a, double init_b,
                         const std::string& rule, std::vector<double> settings,
                         std::vector<float> initial_state, const Codec& codec, bool round_to_half) {
  return {dim,
          {init_kind(init), float(init_a), float(init_b)},
          rule,
          std::move(settings),
          std::move(initial_state),
          codec,
          round_to_half};
}

Missing missing_rule(const std::string& name) {
  if (name == "zeros") return Missing::zeros;
  if (name == "initializer") return Missing::first_value;
  throw std::invalid_argument("missing is '" + name + "'; it must be 'zeros' or 'initializer'");
}

void bind_process(nb::module_& m) {
  m.def("isa", [] { return isa_name(active_isa()); });
  m.def("isas", &available_isas);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("threads", &thread_count);
  m.def("set_threads", &set_thread_count, "count"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("memory_used", &memory_used);
  m.def("memory_limit", &memory_limit);
  m.def("set_memory_limit", &set_memory_limit, "limit_bytes"_a);
  m.def("rule_names", &rule_names);
}

void bind_values(nb::module_& m) {
  using Four = std::array<u32, 4>;
  using Two = std::array<u32, 2>;
  m.def("philox", [](const Four& counter, const Two& key) {
    const PhiloxWords out =
        philox({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
    return Four{out.word[0], out.word[1], out.word[2], out.word[3]};
  });
  m.def(
      "first_values",
      [](const std::string& kind, double a, double b, u64 seed, Address ids, u64 n,
         int first_column, int dim, Address out) {
        const Initializer init{init_kind(kind), float(a), float(b)};
        for (u64 i = 0; i < n; ++i)
          first_values(init, seed, at<u64>(ids)[i], first_column, dim, at<float>(out) + i * dim);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("half_neighbours", [](double x) {
    const HalfNeighbours found = half_neighbours(float(x));
    return std::tuple(found.down, found.up);
  });
  m.def(
      "round_to_half",
      [](u64 seed, Address ids, u64 n, i64 step, u32 number, int first_column, int dim,
         Address rows) {
        for (u64 i = 0; i < n; ++i)
          round_row_to_half(seed, at<u64>(ids)[i], step, number, first_column, dim,
                            at<float>(rows) + i * dim);
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "first_not_finite",
      [](Address values, u64 n) { return first_not_finite(at<float>(values), n); },
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "gather",
      [](Address rows, Address numbers, u64 n, u64 dim, Address out) {
        gather(at<float>(rows), at<i64>(numbers), n, dim, at<float>(out));
      },
      nb::call_guard<nb::gil_scoped_release>());
}

void bind_codecs(nb::module_& m) {
  nb::class_<Codec>(m, "Codec")
      .def(
          "__init__",
          [](Codec* self, const std::string& kind, double range, double amplitude, i64 step_size,
             double init_scale, double max_scale) {
            new (self) Codec{codec_kind(kind), float(range), float(amplitude),
                             step_size,        init_scale,   max_scale};
          },
          "kind"_a, "range"_a = 1.0, "amplitude"_a = 1.0, "step_size"_a = 1, "init_scale"_a = 1.0,
          "max_scale"_a = 1.0)
      .def("bytes_per_value", [](const Codec& codec) { return bytes_per_value(codec.kind); })
      .def("encode", [](const Codec& codec, Address values, int n,
                        Address out) { encode(codec, at<float>(values), n, at<u8>(out)); })
      .def("decode", [](const Codec& codec, Address stored, int n,
                        Address out) { decode(codec, at<u8>(stored), n, at<float>(out)); })
      .def("view_forward",
           [](const Codec& codec, i64 step, Address values, int n, Address out) {
             view_forward(codec, step, at<float>(values), n, at<float>(out));
           })
      .def("view_backward",
           [](const Codec& codec, i64 step, Address values, Address grad, int n, Address out) {
             view_backward(codec, step, at<float>(values), at<float>(grad), n, at<float>(out));
           });
}

void bind_segment(nb::module_& m) {
  nb::class_<SegmentSpec>(m, "Segment")
      .def("__init__", [](SegmentSpec* self, int dim, const std::string& init, double init_a,
                          double init_b, const std::string& rule, std::vector<double> settings,
                          std::vector<float> initial_state, const Codec& codec,
                          bool round_to_half) {
        new (self) SegmentSpec(make_segment(dim, init, init_a, init_b, rule, std::move(settings),
                                            std::move(initial_state), codec, round_to_half));
      });
}

const auto unlocked = nb::call_guard<nb::gil_scoped_release>();

void bind_reads(nb::class_<Table>& table) {
  table
      .def(
          "lookup",
          [](const Table& t, Address ids, u64 n, const std::string& missing, i64 step, Address out,
             bool reused) {
            const Missing rule = missing_rule(missing);
            t.lookup(at<i64>(ids), n, rule, step, at<float>(out), reused);
          },
          unlocked)
      .def(
          "contains",
          [](const Table& t, Address ids, u64 n, Address out) {
            t.contains(at<i64>(ids), n, at<u8>(out));
          },
          unlocked)
      .def(
          "entries",
          [](const Table& t, Address ids, u64 n, Address found, Address rows, Address states,
             Address times) {
            t.entries(at<i64>(ids), n, at<u8>(found), at<float>(rows), at<float>(states),
                      at<i64>(times));
          },
          unlocked)
      .def("size", &Table::size, unlocked)
      .def("newest_time", &Table::newest_time)
      .def("counted",
           [](const Table& t) {
             const Applied all = t.counted();
             return std::tuple(all.inserted, all.refused, all.dropped, all.erased);
           })
      .def(
          "load",
          [](const Table& t) {
            const LoadStatistics load = t.load();
            return std::tuple(load.load_factor, load.longest_search);
          },
          unlocked)
      .def(
          "memory",
          [](const Table& t) {
            const MemoryUse use = t.memory();
            return std::tuple(use.index_bytes, use.row_bytes, use.slack_bytes);
          },
          unlocked)
      .def(
          "scan",
          [](const Table& t, u64 cursor, u64 room, Address ids, Address rows, Address states,
             Address times) {
            const ScanStep step = t.scan(cursor, room, at<i64>(ids), at<float>(rows),
                                         at<float>(states), at<i64>(times));
            return std::tuple(step.rows, step.cursor, step.done, step.needed);
          },
          unlocked);
}

void bind_writes(nb::class_<Table>& table) {
  table
      .def(
          "assign",
          [](Table& t, Address ids, u64 n, Address rows, i64 time) {
            return counts(t.assign(at<i64>(ids), n, at<float>(rows), time));
          },
          unlocked)
      .def(
          "assign_add",
          [](Table& t, Address ids, u64 n, Address rows, i64 time) {
            return counts(t.assign_add(at<i64>(ids), n, at<float>(rows), time));
          },
          unlocked)
      .def("apply_gradients",
           [](Table& t, Address ids, u64 n, Address grads, const std::vector<float>& rates,
              i64 step, i64 time, bool per_occurrence, Address occurrences) {
             const nb::gil_scoped_release release;
             return counts(t.apply_gradients(at<i64>(ids), n,
                                             {at<float>(grads), rates.data(), step, time,
                                              per_occurrence, at<i64>(occurrences)}));
           })
      .def(
          "restore",
          [](Table& t, Address ids, u64 n, Address rows, Address states, Address times) {
            return counts(
                t.restore(at<i64>(ids), n, at<float>(rows), at<float>(states), at<i64>(times)));
          },
          unlocked)
      .def(
          "reinitialize",
          [](Table& t, Address ids, u64 n, i64 time, Address status) {
            return t.reinitialize(at<i64>(ids), n, time, at<i8>(status));
          },
          unlocked)
      .def(
          "erase",
          [](Table& t, Address ids, u64 n, Address erased) {
            return t.erase(at<i64>(ids), n, at<u8>(erased));
          },
          unlocked)
      .def("clear", &Table::clear, unlocked);
}

using ArrayShape = std::tuple<u64, u64, u64>;  // bytes of a cell, cells, used ones

void bind_filter(nb::module_& m) {
  nb::class_<SlidingFilter>(m, "SlidingFilter")
      .def(
          "__init__",
          [](SlidingFilter* self, u64 capacity, u64 parts, u64 seed, u32 max_count) {
            new (self) SlidingFilter({capacity, parts, seed, max_count});
          },
          "capacity"_a, "parts"_a, "seed"_a, "max_count"_a)
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
             return std::tuple(state.head, state.head_increment, state.failures, arrays);
           })
      .def("restore", [](SlidingFilter& f, u64 head, u64 head_increment, u64 failures,
                         const std::vector<ArrayShape>& arrays, Address from, u64 bytes) {
        SlidingFilter::State state{head, head_increment, failures, {}};
        for (const auto& [cell_bytes, cells, size] : arrays)
          state.arrays.push_back({cell_bytes, cells, size});
        const nb::gil_scoped_release release;
        f.restore(state, at<u8>(from), bytes);
      });
}

void bind_admission(nb::module_& m) {
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

void bind_table(nb::module_& m) {
  nb::class_<Table> table(m, "Table");
  table
      .def(nb::init<const std::vector<SegmentSpec>&, bool, bool, u64, u64,
                    std::shared_ptr<Admission>>(),
           "segments"_a, "serving"_a, "skip_zero"_a, "seed"_a, "initial_capacity"_a,
           "admission"_a.none() = nb::none())
      .def("dim", [](const Table& t) { return t.layout().dim; })
      .def("state_floats", [](const Table& t) { return t.layout().state_floats; })
      .def("row_bytes", [](const Table& t) { return t.layout().row_bytes; })
      .def("needs_step", [](const Table& t) { return t.layout().needs_step; });
  bind_reads(table);
  bind_writes(table);
}

}  // namespace
}  // namespace hedgerow

NB_MODULE(_native, m) {
  using namespace hedgerow;
  nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
    try {
      std::rethrow_exception(failure);
    } catch (const OutOfMemory& e) {
      const std::string text =
          "a table wanted " + std::to_string(e.wanted_bytes) + " more bytes; tables hold " +
          std::to_string(e.used_bytes) +
          (e.limit_bytes == 0 ? std::string(" and the operating system gave no more")
                              : " of a limit of " + std::to_string(e.limit_bytes)) +
          (e.rows_changed
               ? ". It came too late to undo (other calls erased rows of this one while it ran, or "
                 "its scratch memory was refused): part of it was written"
               : ". Nothing was changed");
      PyErr_SetString(PyExc_MemoryError, text.c_str());
    } catch (const std::length_error& e) {
      PyErr_SetString(PyExc_MemoryError, e.what());
    }
  });
  bind_process(m);
  bind_values(m);
  bind_codecs(m);
  bind_segment(m);
  bind_filter(m);
  bind_admission(m);
  bind_table(m);
}
