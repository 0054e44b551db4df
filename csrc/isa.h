// Run-time choice of instruction set: every hot loop is compiled for each, and one is picked at the
// call.
//
// Only functions carry a target attribute, never a file: library code inlined into a file compiled
// for AVX-512 would be shared by the linker with the rest of the process and kill older machines.
#pragma once

#include <string>
#include <vector>

#include "bits.h"

namespace hedgerow {

enum class Isa : int { baseline = 0, avx2 = 1, avx512 = 2 };
inline constexpr int kIsas = 3;

Isa active_isa();
std::vector<std::string> available_isas();  // slowest first
std::string isa_name(Isa isa);
void set_isa(const std::string& name);  // throws std::invalid_argument; "fastest" is a name too

#if defined(__x86_64__)
#define HR_TARGET_AVX2 __attribute__((target("avx2,f16c,bmi2")))
#if defined(__clang__)  // ignores an attribute with a width
#define HR_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,bmi2")))
#else
#define HR_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,bmi2,prefer-vector-width=512")))
#endif
#else
#define HR_TARGET_AVX2
#define HR_TARGET_AVX512
#endif

// Three compilations of Body::run, an always-inline function: same source, same results to the bit
// (no fused multiply-add anywhere), different registers.
template <class Body, class... Args>
struct Variants {
  using Function = void (*)(Args...);
  static void baseline(Args... args) { Body::run(args...); }
  HR_TARGET_AVX2 static void avx2(Args... args) { Body::run(args...); }
  HR_TARGET_AVX512 static void avx512(Args... args) { Body::run(args...); }

  static Function pick(Isa isa) {
    switch (isa) {
      case Isa::avx512:
        return &avx512;
      case Isa::avx2:
        return &avx2;
      default:
        return &baseline;
    }
  }
};

}  // namespace hedgerow
