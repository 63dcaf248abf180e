#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "megamoe/cpu/isa.h"

namespace megamoe::cpu {
namespace {

bool supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  switch (isa) {
    case Isa::Portable:
      return true;
    case Isa::Avx2:
      return avx2;
    case Isa::Avx512:
      return avx512;
    case Isa::Avx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  }
  return false;
#else
  return isa == Isa::Portable;
#endif
}

Isa named(const std::string& name) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (name == isa_name(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  throw std::invalid_argument("unknown level '" + name +
                              "'; known: portable, avx2, avx512, avx512bf16");
}

Isa executable(Isa isa) {
  if (!supported(isa)) {
    throw std::invalid_argument(std::string("this machine cannot execute the level ") +
                                isa_name(isa));
  }
  return isa;
}

// Worker processes take no call from a test, so a test forces their level through AFD_ISA.
Isa first_level() {
  const char* forced = std::getenv("AFD_ISA");
  return forced == nullptr ? supported_isas().back() : executable(named(forced));
}

std::atomic<Isa>& level() {
  static std::atomic<Isa> value{first_level()};
  return value;
}

}  // namespace

const char* isa_name(Isa isa) {
  static constexpr const char* kNames[kIsaCount] = {"portable", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<int>(isa)];
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  for (int i = 0; i < kIsaCount; ++i) {
    if (supported(static_cast<Isa>(i))) found.push_back(static_cast<Isa>(i));
  }
  return found;
}

Isa current_isa() { return level().load(std::memory_order_relaxed); }

void set_isa(Isa isa) { level().store(executable(isa), std::memory_order_relaxed); }

void set_isa(const std::string& name) { set_isa(named(name)); }

}  // namespace megamoe::cpu
