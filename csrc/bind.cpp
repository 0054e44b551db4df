// The Python module: the process, values, codecs, and what the other bind files add.
#include "bind.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <tuple>

#include "codec.h"
#include "crc32c.h"
#include "finite.h"
#include "gather.h"
#include "half.h"
#include "hash_strings.h"
#include "initializer.h"
#include "isa.h"
#include "memory.h"
#include "optimizer.h"
#include "philox.h"
#include "pool.h"
#include "rounding.h"
#include "table.h"

namespace hedgerow {
namespace {

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

void bind_process(nb::module_& m) {
  m.def("isa", [] { return isa_name(active_isa()); });
  m.def("isas", &available_isas);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("threads", &thread_count);
  m.def("set_threads", &set_thread_count, "count"_a, unlocked);
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
      unlocked);
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
      unlocked);
  m.def(
      "crc32c", [](Address data, u64 n, u32 seed) { return crc32c(at<u8>(data), n, seed); },
      unlocked);
  m.def(
      "hash_strings",
      [](Address data, Address offsets, u64 n, u64 seed, Address out) {
        hash_strings(at<u8>(data), at<i64>(offsets), n, seed, at<u64>(out));
      },
      unlocked);
  m.def(
      "first_not_finite",
      [](Address values, u64 n) { return first_not_finite(at<float>(values), n); }, unlocked);
  m.def(
      "gather",
      [](Address rows, Address numbers, u64 n, u64 dim, Address out) {
        gather(at<float>(rows), at<i64>(numbers), n, dim, at<float>(out));
      },
      unlocked);
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

}  // namespace
}  // namespace hedgerow

NB_MODULE(_native, m) {
  using namespace hedgerow;
  // A table that a script still holds when Python ends is no leak.
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
    try {
      std::rethrow_exception(failure);
    } catch (const UnusableRows& e) {
      const nb::object errors = nb::module_::import_("hedgerow.core.errors");
      PyErr_SetString(nb::getattr(errors, "StateError").ptr(),
                      (e.what() + std::string(".")).c_str());
    } catch (const NoRoomInFile& e) {
      const std::string text = "rows wanted " + std::to_string(e.wanted_bytes) +
                               " more bytes of a file in " + e.folder + ": " + e.reason +
                               "; make room there" +
                               (e.rows_changed ? ". It came too late to undo: part of the call was "
                                                 "written"
                                               : ". Nothing was changed");
      PyErr_SetString(PyExc_MemoryError, text.c_str());
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
  // A writer that waits for a snapshot's reader can be interrupted.
  set_while_waiting([] {
    const nb::gil_scoped_acquire hold;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
  bind_process(m);
  bind_values(m);
  bind_codecs(m);
  bind_segment(m);
  bind_admission(m);
  bind_ops(m);
  bind_table(m);
  bind_bags(m);
  bind_request(m);
}
