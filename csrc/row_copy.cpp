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
    for (u64 i = 0; i < args.n; ++i) {
      float* __restrict out = args.out + i * u64(dim);
      const float* __restrict row = reinterpret_cast<const float*>(args.rows[i]);
      if (__builtin_expect(row == nullptr, 0)) {
        for (int c = 0; c < dim; ++c) out[c] = 0.0f;
      } else {
        for (int c = 0; c < dim; ++c) out[c] = row[c];
      }
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
// output larger than the caches that is a third of all traffic.
#if defined(__x86_64__)
HR_TARGET_AVX512 void stream_avx512(const CopyArgs& args) {
  const int dim = args.dim;
  for (u64 i = 0; i < args.n; ++i) {
    float* out = args.out + i * u64(dim);
    const float* row = reinterpret_cast<const float*>(args.rows[i]);
    for (int c = 0; c < dim; c += 16)
      _mm512_stream_ps(out + c, row == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(row + c));
  }
}

HR_TARGET_AVX2 void stream_avx2(const CopyArgs& args) {
  const int dim = args.dim;
  for (u64 i = 0; i < args.n; ++i) {
    float* out = args.out + i * u64(dim);
    const float* row = reinterpret_cast<const float*>(args.rows[i]);
    for (int c = 0; c < dim; c += 8)
      _mm256_stream_ps(out + c, row == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(row + c));
  }
}

void stream_baseline(const CopyArgs& args) {
  const int dim = args.dim;
  for (u64 i = 0; i < args.n; ++i) {
    float* out = args.out + i * u64(dim);
    const float* row = reinterpret_cast<const float*>(args.rows[i]);
    for (int c = 0; c < dim; c += 4)
      _mm_stream_ps(out + c, row == nullptr ? _mm_setzero_ps() : _mm_load_ps(row + c));
  }
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
