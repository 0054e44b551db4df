// Detects the instruction sets of this machine and keeps the one in use.
#include "isa.h"

#include <atomic>
#include <stdexcept>

namespace hedgerow {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa fastest() {
  static const Isa found = detect();
  return found;
}

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa{fastest()};
  return isa;
}

}  // namespace

Isa active_isa() { return active().load(std::memory_order_relaxed); }

std::string isa_name(Isa isa) {
  static const char* const names[kIsas] = {"baseline", "avx2", "avx512"};
  return names[int(isa)];
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int i = 0; i <= int(fastest()); ++i) names.push_back(isa_name(Isa(i)));
  return names;
}

void set_isa(const std::string& name) {
  if (name == "fastest") return active().store(fastest());
  std::string known;
  for (int i = 0; i <= int(fastest()); ++i) {
    if (isa_name(Isa(i)) == name) return active().store(Isa(i));
    known += isa_name(Isa(i)) + ", ";
  }
  throw std::invalid_argument("instruction set '" + name +
                              "' is not one of this machine's: " + known + "fastest");
}

}  // namespace hedgerow
