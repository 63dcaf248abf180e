#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "megamoe/cpu/amx.h"
#include "megamoe/cpu/amx_cpuid.h"
#include "megamoe/cpu/isa.h"

namespace megamoe::cpu {
namespace {

#if defined(AFD_AMX_EMULATED)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

#if defined(__x86_64__)
// Linux lets a process use the tiles once it has asked for their state.
bool tiles_granted() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#endif

bool supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  const bool bf16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::Portable:
      return true;
    case Isa::Avx2:
      return avx2;
    case Isa::Avx512:
      return avx512;
    case Isa::Avx512Bf16:
      return bf16;
    case Isa::Amx:
      if (!bf16 || kEmulated) return bf16;
      return has_amx() && tiles_granted();
  }
  return false;
#else
  return isa == Isa::Portable;
#endif
}

Isa named(const std::string& name) {
  std::string known;
  for (int i = 0; i < kIsaCount; ++i) {
    if (name == isa_name(static_cast<Isa>(i))) return static_cast<Isa>(i);
    known += (i == 0 ? "" : ", ") + std::string(isa_name(static_cast<Isa>(i)));
  }
  throw std::invalid_argument("unknown level '" + name + "'; known: " + known);
}

Isa executable(Isa isa) {
  if (!supported(isa)) {
    throw std::invalid_argument(std::string("this machine cannot execute the level ") +
                                isa_name(isa));
  }
#if defined(__x86_64__)
  if (isa == Isa::Amx && !kEmulated) check_amx(gemm_amx());
#endif
  return isa;
}

// Worker processes take no call from a test, so a test forces their level through AFD_ISA.
Isa first_level() {
  const char* forced = std::getenv("AFD_ISA");
  return executable(forced == nullptr ? supported_isas().back() : named(forced));
}

std::atomic<Isa>& level() {
  static std::atomic<Isa> value{first_level()};
  return value;
}

}  // namespace

const char* isa_name(Isa isa) {
  static constexpr const char* kNames[kIsaCount] = {"portable", "avx2", "avx512", "avx512bf16",
                                                    kEmulated ? "amx-emulated" : "amx"};
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
