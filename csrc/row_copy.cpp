// The copy loop. Rows are short: a call of memcpy for each would cost more than the copy, and for
// the usual widths even the loop over columns does.
#include "row_copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hedgerow {
namespace {

struct CopyBody {
  template <int kDim>
  static HR_INLINE void rows_of(const CopyArgs& args) {
    const int dim = kDim == 0 ? args.dim : kDim;
    float* next = args.out + args.places[0] * u64(dim);
    for (u64 i = 0; i < args.n; ++i) {
      const float* __restrict row = reinterpret_cast<const float*>(args.rows[i]);
      u32 times = args.places[i + 1] - args.places[i];
      do {
        float* __restrict out = next;
        if (__builtin_expect(row == nullptr, 0)) {
          for (int c = 0; c < dim; ++c) out[c] = 0.0f;
        } else {
          for (int c = 0; c < dim; ++c) out[c] = row[c];
        }
        next += dim;
      } while (--times != 0);
    }
  }

  static HR_INLINE void run(const CopyArgs& args) {
    switch (args.dim) {
      case 8:
        return rows_of<8>(args);
      case 16:
        return rows_of<16>(args);
      case 32:
        return rows_of<32>(args);
      case 64:
        return rows_of<64>(args);
      case 128:
        return rows_of<128>(args);
      default:
        return rows_of<0>(args);
    }
  }
};

// Stores past the caches. An ordinary store first reads the line that it is about to overwrite; for
// output larger than the caches that is a third of all traffic. `line(out, row)` stores 16 floats,
// of zeros if there is no row.
#if defined(__x86_64__)
template <class Line>
HR_INLINE void stream_lines(const CopyArgs& args, const Line& line) {
  float* out = args.out + args.places[0] * u64(args.dim);
  for (u64 i = 0; i < args.n; ++i) {
    const float* const row = reinterpret_cast<const float*>(args.rows[i]);
    u32 times = args.places[i + 1] - args.places[i];
    do {
      float* const end = out + args.dim;
      for (const float* from = row; out != end; out += 16) {
        line(out, from);
        if (from != nullptr) from += 16;
      }
    } while (--times != 0);
  }
}

HR_TARGET_AVX512 void stream_avx512(const CopyArgs& args) {
  stream_lines(args, [](float* out, const float* row) HR_TARGET_AVX512 {
    _mm512_stream_ps(out, row == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(row));
  });
}

HR_TARGET_AVX2 void stream_avx2(const CopyArgs& args) {
  stream_lines(args, [](float* out, const float* row) HR_TARGET_AVX2 {
    const __m256 zero = _mm256_setzero_ps();
    _mm256_stream_ps(out, row == nullptr ? zero : _mm256_loadu_ps(row));
    _mm256_stream_ps(out + 8, row == nullptr ? zero : _mm256_loadu_ps(row + 8));
  });
}

void stream_baseline(const CopyArgs& args) {
  stream_lines(args, [](float* out, const float* row) {
    for (int c = 0; c < 16; c += 4)
      _mm_stream_ps(out + c, row == nullptr ? _mm_setzero_ps() : _mm_load_ps(row + c));
  });
}
#endif

}  // namespace

CopyFunction copy_function(Isa isa) { return Variants<CopyBody, const CopyArgs&>::pick(isa); }

void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

CopyFunction stream_function(Isa isa, int dim, const float* out) {
#if defined(__x86_64__)
  const bool whole_lines = dim % 16 == 0 && u64(out) % 64 == 0;
  if (whole_lines && isa == Isa::avx512) return &stream_avx512;
  if (whole_lines && isa == Isa::avx2) return &stream_avx2;
  if (whole_lines) return &stream_baseline;
#endif
  (void)dim, (void)out;
  return copy_function(isa);
}

}  // namespace hedgerow
