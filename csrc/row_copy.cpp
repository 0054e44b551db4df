// The copy loop. Rows are short: a call of memcpy for each would cost more than the copy, and for
// the usual widths even the loop over columns does.
#include "row_copy.h"

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

}  // namespace

CopyFunction copy_function(Isa isa) { return Variants<CopyBody, const CopyArgs&>::pick(isa); }

}  // namespace hedgerow
