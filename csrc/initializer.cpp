// Writes first values, one compilation per instruction set.
#include "initializer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "philox.h"

namespace hedgerow {
namespace {

constexpr int kAttempts = 16;  // of a truncated draw: the attempt has 4 bits in the counter

struct UniformBody {
  static HR_INLINE void run(const Initializer* init, u64 seed, u64 id, int first_column, int dim,
                            float* out) {
    constexpr int kLanes =
        8;  // blocks drawn side by side, so that the rounds fill vector registers
    const float low = init->a;
    const float width = init->b - init->a;
    const RowDraw draw(seed, id, philox_tag(Stream::first_values, 0, 0));
    const int end = first_column + dim;
    for (int block = first_column / 4; block * 4 < end; block += kLanes) {
      u32 words[kLanes * 4];
      for (int lane = 0; lane < kLanes; ++lane) {
        const PhiloxWords drawn = draw.block(u32(block + lane));
        for (int k = 0; k < 4; ++k) words[lane * 4 + k] = drawn.word[k];
      }
      const int from = std::max(first_column, block * 4);
      const int to = std::min(end, (block + kLanes) * 4);
      for (int c = from; c < to; ++c) {
        const float scaled = unit_float(words[c - block * 4]) * width;
        out[c - first_column] = low + scaled;
      }
    }
  }
};

// Sum of twelve 24-bit integers, centred: an integer until the last step, so no order can change
// it.
HR_INLINE float twelve_sum(const RowDraw& draw, int column) {
  u32 sum = 0;
  for (u32 block = 0; block < 3; ++block) {
    const PhiloxWords drawn = draw.block(u32(column) * 3 + block);
    for (u32 word : drawn.word) sum += word >> 8;
  }
  return float(int(sum) - 6 * (1 << 24)) * 0x1p-24f;
}

struct NormalBody {
  static HR_INLINE void run(const Initializer* init, u64 seed, u64 id, int first_column, int dim,
                            float* out) {
    const RowDraw draw(seed, id, philox_tag(Stream::first_values, 0, 0));
    for (int c = 0; c < dim; ++c) {
      const float scaled = init->b * twelve_sum(draw, first_column + c);
      out[c] = init->a + scaled;
    }
  }
};

struct TruncatedNormalBody {
  static HR_INLINE void run(const Initializer* init, u64 seed, u64 id, int first_column, int dim,
                            float* out) {
    for (int c = 0; c < dim; ++c) {
      float z = 0;
      for (u32 attempt = 0; attempt < kAttempts; ++attempt) {
        z = twelve_sum(RowDraw(seed, id, philox_tag(Stream::first_values, attempt, 0)),
                       first_column + c);
        if (std::fabs(z) <= 2.0f) break;
      }
      // Sixteen failures in a row have probability 1e-21; the last draw is then cut at the bound.
      z = std::min(2.0f, std::max(-2.0f, z));
      const float scaled = init->b * z;
      out[c] = init->a + scaled;
    }
  }
};

template <class Body>
void draw_row(const Initializer& init, u64 seed, u64 id, int first_column, int dim, float* out) {
  Variants<Body, const Initializer*, u64, u64, int, int, float*>::pick(active_isa())(
      &init, seed, id, first_column, dim, out);
}

}  // namespace

InitKind init_kind(const std::string& name) {
  if (name == "constant") return InitKind::constant;
  if (name == "uniform") return InitKind::uniform;
  if (name == "normal") return InitKind::normal;
  if (name == "truncated_normal") return InitKind::truncated_normal;
  throw std::invalid_argument("unknown initializer '" + name + "'");
}

void first_values(const Initializer& init, u64 seed, u64 id, int first_column, int dim,
                  float* out) {
  switch (init.kind) {
    case InitKind::constant:
      std::fill_n(out, dim, init.a);
      break;
    case InitKind::uniform:
      draw_row<UniformBody>(init, seed, id, first_column, dim, out);
      break;
    case InitKind::normal:
      draw_row<NormalBody>(init, seed, id, first_column, dim, out);
      break;
    case InitKind::truncated_normal:
      draw_row<TruncatedNormalBody>(init, seed, id, first_column, dim, out);
      break;
  }
}

}  // namespace hedgerow
