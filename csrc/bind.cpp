// The Python module: addresses and sizes in, plain values out, the GIL released. Python has checked
// dtype, device, contiguity and length; the caller keeps its buffers alive during the call.
#include <nanobind/nanobind.h>
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
#include "initializer.h"
#include "isa.h"
#include "memory.h"
#include "optimizer.h"
#include "philox.h"
#include "pool.h"
#include "rounding.h"
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
      "crc32c", [](Address data, u64 n, u32 seed) { return crc32c(at<u8>(data), n, seed); },
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
              i64 step, i64 time, bool per_occurrence) {
             const nb::gil_scoped_release release;
             return counts(t.apply_gradients(
                 at<i64>(ids), n, {at<float>(grads), rates.data(), step, time, per_occurrence}));
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

LeaveBy order_named(const std::string& name) {
  if (name == "time") return LeaveBy::time;
  if (name == "use") return LeaveBy::use;
  throw std::invalid_argument("order is '" + name + "'; it must be 'time' or 'use'");
}

void bind_evictions(nb::class_<Table>& table) {
  const auto outcome = [](const ScanStep& step) {
    return std::tuple(step.rows, step.cursor, step.done, step.needed);
  };
  table
      .def(
          "evict_older",
          [outcome](Table& t, i64 reference, Address ages, u64 cursor, u64 room, Address ids,
                    Address times) {
            return outcome(t.evict_older(reference, at<i64>(ages), cursor, room, at<i64>(ids),
                                         at<i64>(times)));
          },
          unlocked)
      .def(
          "find_cut",
          [](Table& t, const std::string& order, u64 budget) {
            const Cut cut = t.find_cut(order_named(order), budget);
            return std::tuple(cut.excess, cut.score, cut.key);
          },
          unlocked)
      .def(
          "evict_ranked",
          [outcome](Table& t, const std::string& order, u64 excess, u64 score, i64 key, u64 cursor,
                    u64 room, Address ids, Address times) {
            return outcome(t.evict_ranked(order_named(order), {excess, score, key}, cursor, room,
                                          at<i64>(ids), at<i64>(times)));
          },
          unlocked);
}

void bind_watching(nb::class_<Table>& table) {
  table.def("open_touched", &Table::open_touched, unlocked)
      .def("close_touched", &Table::close_touched, unlocked)
      .def(
          "take_touched",
          [](Table& t, u64 consumer, int shard, u64 room, Address ids) {
            const TouchedStep step = t.take_touched(consumer, shard, room, at<i64>(ids));
            return std::tuple(step.keys, step.shard, step.shard == kShards, step.needed, step.whole,
                              step.forgotten);
          },
          unlocked)
      .def(
          "touch",
          [](Table& t, u64 consumer, Address ids, u64 n) { t.touch(consumer, at<i64>(ids), n); },
          unlocked)
      .def("touch_all", &Table::touch_all, unlocked)
      .def(
          "touched_use",
          [](const Table& t, u64 consumer) {
            const TouchedUse use = t.touched_use(consumer);
            return std::tuple(use.keys, use.overflows);
          },
          unlocked)
      .def(
          "open_snapshot",
          [](Table& t, u64 aside_bytes, bool pause) {
            const SnapshotStart start = t.open_snapshot(aside_bytes, pause);
            return std::tuple(start.ticket, start.rows, start.newest_time);
          },
          unlocked)
      .def("resume_writers", &Table::resume_writers)
      .def(
          "read_snapshot",
          [](Table& t, u64 ticket, u64 room, Address ids, Address rows, Address states,
             Address times) {
            const SnapshotStep step = t.read_snapshot(ticket, room, at<i64>(ids), at<float>(rows),
                                                      at<float>(states), at<i64>(times));
            return std::tuple(step.rows, step.done, step.needed);
          },
          unlocked)
      .def("snapshot_use",
           [](const Table& t) {
             const SnapshotUse use = t.snapshot_use();
             return std::tuple(use.aside_rows, use.waited_s);
           })
      .def("close_snapshot", &Table::close_snapshot, unlocked);
}

void bind_table(nb::module_& m) {
  nb::class_<Table> table(m, "Table");
  table
      .def(nb::init<const std::vector<SegmentSpec>&, bool, bool, u64, u64, bool>(), "segments"_a,
           "serving"_a, "skip_zero"_a, "seed"_a, "initial_capacity"_a, "counts_uses"_a = false)
      .def("dim", [](const Table& t) { return t.layout().dim; })
      .def("state_floats", [](const Table& t) { return t.layout().state_floats; })
      .def("row_bytes", [](const Table& t) { return t.layout().row_bytes; })
      .def("needs_step", [](const Table& t) { return t.layout().needs_step; });
  bind_reads(table);
  bind_writes(table);
  bind_evictions(table);
  bind_watching(table);
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
  // A writer that waits for a snapshot's reader can be interrupted.
  set_while_waiting([] {
    const nb::gil_scoped_acquire hold;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
  bind_process(m);
  bind_values(m);
  bind_codecs(m);
  bind_segment(m);
  bind_table(m);
}
