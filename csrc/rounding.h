// Stochastic rounding of a row to half precision: unbiased, keyed by (seed, id, column, step).
#pragma once

#include <algorithm>

#include "half.h"
#include "philox.h"

namespace hedgerow {

// `number` tells apart several roundings of one row at one step: its low 4 bits are the attempt of
// the counter, the rest moves the block beyond those that a row can use.
inline void round_row_to_half(u64 seed, u64 id, i64 step, u32 number, int first_column, int dim,
                              float* row) {
  constexpr u32 kBlocksOfRow = 1u << 14;  // 65,536 columns
  const RowDraw draw(seed, id, philox_tag(Stream::rounding, number & 15u, step));
  const u32 block_from = (number >> 4) * kBlocksOfRow;
  PhiloxWords drawn{};
  int drawn_block = -1;
  for (int c = 0; c < dim; ++c) {
    const auto [down, up] = half_neighbours(row[c]);
    if (down == up) {
      row[c] = down;
      continue;
    }
    const int column = first_column + c;
    if (column / 4 != drawn_block) {
      drawn_block = column / 4;
      drawn = draw.block(block_from + u32(drawn_block));
    }
    // Neighbours are at most one binade apart, so both differences are exact in float.
    const float chance_up = (row[c] - down) / (up - down);
    row[c] = unit_float(drawn.word[column & 3]) < chance_up ? up : down;
  }
}

}  // namespace hedgerow
