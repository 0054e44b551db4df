// A check that says where it failed, and a small table for tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "table.h"

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (0)

namespace hedgerow {

inline SegmentSpec sgd_segment(int dim, float start = 0) {
  SegmentSpec spec;
  spec.dim = dim;
  spec.init = {InitKind::constant, start, 0};
  spec.rule = "sgd";
  spec.settings = {0.0};
  return spec;
}

inline Table sgd_table(int dim) {
  return Table({sgd_segment(dim)}, RowForm::training, ZeroRows::store, 1, 0);
}

inline std::vector<i64> random_ids(u64 n, u64 seed) {
  std::mt19937_64 random(seed);
  std::vector<i64> ids(n);
  for (i64& id : ids) id = i64(random());
  return ids;
}

inline std::vector<float> ones(u64 n, float value = 1) { return std::vector<float>(n, value); }

}  // namespace hedgerow
