// The table's verbs on one thread: rules and codecs of every kind, refusals, and running out of
// memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "check.h"
#include "finite.h"
#include "half.h"
#include "pool.h"
#include "table.h"

using namespace hedgerow;

namespace {

void every_rule_steps() {
  for (const std::string& isa : available_isas()) {
    set_isa(isa);
    for (const std::string& name : rule_names()) {
      for (int dim : {1, 3, 16, 37}) {
        const Rule& rule = rule_named(name);
        if (name == "batch_softmax" && dim != 1) continue;
        SegmentSpec spec = sgd_segment(dim, 0.5f);
        spec.rule = name;
        spec.settings.assign(u64(rule.settings), 0.25);
        spec.initial_state.assign(u64(rule.state_floats(dim)), 0.0f);
        spec.round_to_half = dim == 3;
        Table table({spec, sgd_segment(2)}, RowForm::training, ZeroRows::store, 1, 0);
        const std::vector<i64> ids = {5, -5, 5, 0};
        const std::vector<float> grads = ones(ids.size() * u64(dim + 2), 0.5f);
        const float rates[] = {0.1f, 0.1f};
        for (const EqualIds each : {EqualIds::summed, EqualIds::one_step_each})
          CHECK(table.apply_gradients(ids.data(), ids.size(), {grads.data(), rates, 2, 9, each})
                    .dropped == 0);
        std::vector<float> out(ids.size() * u64(dim + 2));
        table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
        CHECK(all_finite(out.data(), out.size()));
        CHECK(table.size() == 3);
        CHECK(table.newest_time() == 9);
      }
    }
  }
  set_isa("fastest");
}

void every_codec_serves() {
  for (CodecKind kind : {CodecKind::fp32, CodecKind::fp16, CodecKind::bf16, CodecKind::fixed_r8,
                         CodecKind::one_bit}) {
    SegmentSpec spec;
    spec.dim = 3;
    spec.codec.kind = kind;
    Table table({spec, spec}, RowForm::serving, ZeroRows::erase, 1, 0);
    const std::vector<i64> ids = {1, 2, 3};
    std::vector<float> rows = ones(18, 0.5f);
    std::fill_n(rows.data() + 6, 6, 0.0f);
    table.assign(ids.data(), 3, rows.data(), 4);
    CHECK(table.size() == 2);  // the zero row is left out
    table.assign_add(ids.data(), 3, rows.data(), 4);
    std::vector<float> out(18);
    table.lookup(ids.data(), 3, Missing::zeros, 0, out.data(), OutputMemory::fresh);
    CHECK(all_finite(out.data(), out.size()));
    CHECK(out[0] > 0);
  }
}

void odd_halves() {
  for (u32 h = 0; h < 0x7c00u; ++h) {
    CHECK(float_to_half(half_to_float(u16(h))) == h);
    const float value = half_to_float(u16(h));
    CHECK(half_neighbours(value).down == value && half_neighbours(-value).up == -value);
  }
  CHECK(float_to_half(std::numeric_limits<float>::infinity()) == 0x7c00u);
  CHECK(float_to_half(65520.0f) == 0x7c00u && float_to_half(65519.0f) == 0x7bffu);
  CHECK((float_to_half(std::nanf("")) & 0x7fffu) > 0x7c00u);
  const auto [down, up] = half_neighbours(1e-9f);
  CHECK(down == 0.0f && up == 0x1p-24f);
}

// The limit is met in the middle of a large write: nothing changes, and the table goes on working.
void out_of_memory_changes_nothing() {
  Table table = sgd_table(8);
  const std::vector<i64> first = random_ids(1000, 1), many = random_ids(400000, 2);
  const std::vector<float> rows = ones(many.size() * 8);
  table.assign(first.data(), first.size(), rows.data(), 1);
  const u64 held = memory_used();
  set_memory_limit(held + (u64(4) << 20));
  bool refused = false;
  try {
    table.assign(many.data(), many.size(), rows.data(), 2);
  } catch (const OutOfMemory& error) {
    refused = true;
    CHECK(error.limit_bytes != 0);
  }
  CHECK(refused);
  // What was taken for the refused rows is given back; some index growth may stay.
  CHECK(memory_used() < held + (u64(2) << 20));
  CHECK(table.size() == first.size());
  CHECK(table.newest_time() == 1);
  std::vector<u8> there(many.size());
  table.contains(many.data(), many.size(), there.data());
  for (u8 found : there) CHECK(!found);
  table.assign(many.data(), 100, rows.data(), 3);
  CHECK(table.size() == first.size() + 100);
  set_memory_limit(0);
  table.assign(many.data(), many.size(), rows.data(), 4);
  CHECK(table.size() == first.size() + many.size());
  std::vector<u8> erased(many.size());
  table.erase(many.data(), many.size(), erased.data());
  CHECK(table.size() == first.size());
}

void scans_give_each_row_once() {
  Table table = sgd_table(2);
  const std::vector<i64> ids = random_ids(20000, 3);
  table.assign(ids.data(), ids.size(), ones(ids.size() * 2).data(), 7);
  for (u64 room : {1, 10, 5000, 100000}) {
    std::vector<i64> seen;
    u64 space = room;
    std::vector<i64> out(100000), times(100000);
    std::vector<float> rows(200000);
    float no_state = 0;
    ScanStep step{0, 0, false, 0};
    while (!step.done) {
      step = table.scan(step.cursor, space, out.data(), rows.data(), &no_state, times.data());
      if (step.needed) space = step.needed;
      for (u64 i = 0; i < step.rows; ++i) CHECK(times[i] == 7 && rows[2 * i] == 1);
      seen.insert(seen.end(), out.begin(), out.begin() + i64(step.rows));
    }
    std::vector<i64> expected = ids;
    std::sort(seen.begin(), seen.end());
    std::sort(expected.begin(), expected.end());
    CHECK(seen == expected);
  }
}

void bad_descriptions_are_refused() {
  const auto refused = [](SegmentSpec spec) {
    try {
      Table table({spec}, RowForm::training, ZeroRows::store, 1, 0);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  SegmentSpec spec = sgd_segment(2);
  CHECK(!refused(spec));
  spec.dim = 0;
  CHECK(refused(spec));
  spec = sgd_segment(2);
  spec.rule = "unheard of";
  CHECK(refused(spec));
  spec = sgd_segment(2);
  spec.settings = {};
  CHECK(refused(spec));
  spec = sgd_segment(2);
  spec.initial_state = {1.0f};
  CHECK(refused(spec));
}

}  // namespace

int main() {
  every_rule_steps();
  every_codec_serves();
  odd_halves();
  out_of_memory_changes_nothing();
  scans_give_each_row_once();
  bad_descriptions_are_refused();
  return 0;
}
