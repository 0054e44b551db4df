// First values of rows: a pure function of (seed, id, column), the same bits on every machine.
#pragma once

#include <string>

#include "bits.h"
#include "isa.h"

namespace hedgerow {

enum class InitKind { constant, uniform, normal, truncated_normal };

InitKind init_kind(const std::string& name);  // throws std::invalid_argument

// constant: a is the value. uniform: [a, b). normal and truncated_normal: mean a, deviation b.
struct Initializer {
  InitKind kind = InitKind::constant;
  float a = 0, b = 0;
};

// Writes columns [first_column, first_column + dim) of the row of `id`.
void first_values(const Initializer& init, u64 seed, u64 id, int first_column, int dim, float* out);

}  // namespace hedgerow
