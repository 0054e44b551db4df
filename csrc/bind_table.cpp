// A table's verbs for Python.
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
#include "row_file.h"
#include "several_tables.h"
#include "table.h"

namespace hedgerow {
namespace {

using AppliedCounts = std::tuple<i64, i64, i64>;

AppliedCounts counts(const Applied& applied) {
  return {applied.inserted, applied.refused, applied.dropped};
}

Missing missing_rule(const std::string& name) {
  if (name == "zeros") return Missing::zeros;
  if (name == "initializer") return Missing::first_value;
  throw std::invalid_argument("missing is '" + name + "'; it must be 'zeros' or 'initializer'");
}

OutputMemory output_memory(bool reused) {
  return reused ? OutputMemory::reused : OutputMemory::fresh;
}

EqualIds equal_ids(bool per_occurrence) {
  return per_occurrence ? EqualIds::one_step_each : EqualIds::summed;
}

void bind_reads(nb::class_<Table>& table) {
  table
      .def(
          "lookup",
          [](const Table& t, Address ids, u64 n, const std::string& missing, i64 step, Address out,
             bool reused, Address rows) {
            const Missing rule = missing_rule(missing);
            t.lookup(at<i64>(ids), n, rule, step, at<float>(out), output_memory(reused), nullptr,
                     at<u32>(rows));
          },
          "ids"_a, "n"_a, "missing"_a, "step"_a, "out"_a, "reused"_a, "rows"_a = 0, unlocked)
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
      .def("searched", &Table::searched)
      .def("changes", &Table::changes)
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
            return std::tuple(use.index_bytes, use.row_bytes, use.slack_bytes, use.other_bytes);
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
      .def(
          "apply_gradients",
          [](Table& t, Address ids, u64 n, Address grads, const std::vector<float>& rates, i64 step,
             i64 time, bool per_occurrence, Address occurrences, Address rows, u64 changes) {
            const nb::gil_scoped_release release;
            const KnownRows known{at<u32>(rows), changes};
            Update update{at<float>(grads),          rates.data(),        step, time,
                          equal_ids(per_occurrence), at<i64>(occurrences)};
            if (rows != 0) update.known = &known;
            return counts(t.apply_gradients(at<i64>(ids), n, update));
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
      .def(
          "move_in",
          [](Table& t, Address ids, u64 n, Address rows, Address states, Address times) {
            return t.move_in(at<i64>(ids), n, at<float>(rows), at<float>(states), at<i64>(times));
          },
          unlocked)
      .def(
          "move_out",
          [](Table& t, Address ids, u64 n, Address gone) {
            return t.move_out(at<i64>(ids), n, at<u8>(gone));
          },
          unlocked)
      .def("clear", &Table::clear, unlocked)
      .def("exchange", &Table::exchange, unlocked);
}

Marks marks_named(const std::string& name) {
  if (name == "none") return Marks::none;
  if (name == "turn") return Marks::turn;
  if (name == "uses") return Marks::uses;
  throw std::invalid_argument("marks are '" + name + "'; they must be 'none', 'turn' or 'uses'");
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
          [](Table& t, const std::string& order, u64 budget, u64 top) {
            const Cut cut = t.find_cut(order_named(order), budget, top);
            return std::tuple(cut.excess, cut.score, cut.key);
          },
          "order"_a, "budget"_a, "top"_a = 0, unlocked)
      .def(
          "evict_ranked",
          [outcome](Table& t, const std::string& order, u64 excess, u64 score, i64 key, u64 cursor,
                    u64 room, Address ids, Address times, u64 top) {
            return outcome(t.evict_ranked(order_named(order), {excess, score, key}, top, cursor,
                                          room, at<i64>(ids), at<i64>(times)));
          },
          "order"_a, "excess"_a, "score"_a, "key"_a, "cursor"_a, "room"_a, "ids_at"_a, "times_at"_a,
          "top"_a = 0, unlocked)
      .def("looked_at", &Table::looked_at);
}

void bind_watching(nb::class_<Table>& table) {
  table
      .def(
          "open_touched",
          [](Table& t, u64 capacity, bool all_changes, bool forget) {
            return t.open_touched(capacity, all_changes ? Watched::every_change : Watched::training,
                                  forget ? OnOverflow::drop_all : OnOverflow::report_all);
          },
          unlocked)
      .def("close_touched", &Table::close_touched, unlocked)
      .def(
          "take_touched",
          [](Table& t, u64 consumer, int shard, u64 room, Address ids) {
            const TouchedStep step = t.take_touched(consumer, shard, room, at<i64>(ids));
            return std::tuple(step.keys, step.shard, step.shard == kShards, step.needed, step.whole,
                              step.dropped);
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
            const SnapshotStart start =
                t.open_snapshot(aside_bytes, pause ? OtherWriters::pause : OtherWriters::go_on);
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

void bind_several(nb::module_& m) {
  m.def("read_several",
        [](const std::vector<Table*>& tables, const std::vector<u64>& splits, Address ids,
           Address found, Address rows, Address states, Address times) {
          const nb::gil_scoped_release release;
          const std::vector<const Table*> asked(tables.begin(), tables.end());
          return read_several({asked, splits}, {at<i64>(ids), at<u8>(found), at<float>(rows),
                                                at<float>(states), at<i64>(times)});
        });
  m.def("move_in_several",
        [](const std::vector<Table*>& tables, const std::vector<u64>& starts,
           const std::vector<u64>& ends, Address ids, Address rows, Address states, Address times) {
          const nb::gil_scoped_release release;
          move_in_several({tables, starts, ends, at<i64>(ids), at<float>(rows), at<float>(states),
                           at<i64>(times)});
        });
  m.def("lookup_several", [](const std::vector<Table*>& tables, const std::vector<u64>& splits,
                             const std::vector<std::string>& missing, i64 step, Address ids,
                             Address rows, Address found) {
    std::vector<Missing> rules;
    for (const std::string& name : missing) rules.push_back(missing_rule(name));
    const nb::gil_scoped_release release;
    const std::vector<const Table*> asked(tables.begin(), tables.end());
    lookup_several({asked, splits}, {at<i64>(ids), rules, step, at<float>(rows), at<u8>(found)});
  });
}

}  // namespace

void bind_table(nb::module_& m) {
  nb::class_<RowFile>(m, "RowFile")
      .def(nb::init<int, std::string, u64>(), "fd"_a, "folder"_a, "resident_bytes"_a)
      .def("file_bytes", &RowFile::file_bytes, unlocked)
      .def("resident_bytes", &RowFile::resident_bytes)
      .def("measured_bytes", &RowFile::measured_bytes, unlocked);
  nb::class_<Table> table(m, "Table");
  table
      .def(
          "__init__",
          [](Table* t, const std::vector<SegmentSpec>& segments, bool serving, bool skip_zero,
             u64 seed, u64 initial_capacity, const std::string& marks,
             std::shared_ptr<Admission> admission, std::shared_ptr<RowFile> rows_in, u64 slot_key) {
            new (t) Table(segments, serving ? RowForm::serving : RowForm::training,
                          skip_zero ? ZeroRows::erase : ZeroRows::store, seed, initial_capacity,
                          marks_named(marks), std::move(admission), std::move(rows_in), slot_key);
          },
          "segments"_a, "serving"_a, "skip_zero"_a, "seed"_a, "initial_capacity"_a,
          "marks"_a = "none", "admission"_a.none() = nb::none(), "rows_in"_a.none() = nb::none(),
          "slot_key"_a = 0)
      .def("slot_key", &Table::slot_key)
      .def("place_by", &Table::place_by, unlocked)
      .def("dim", [](const Table& t) { return t.layout().dim; })
      .def("state_floats", [](const Table& t) { return t.layout().state_floats; })
      .def("row_bytes", [](const Table& t) { return t.layout().row_bytes; })
      .def("needs_step", [](const Table& t) { return t.layout().needs_step; });
  bind_reads(table);
  bind_writes(table);
  bind_evictions(table);
  bind_watching(table);
  bind_several(m);
}

}  // namespace hedgerow
