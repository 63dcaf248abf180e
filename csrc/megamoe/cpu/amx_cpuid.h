// Whether the processor has AMX, asked of it: clang before 17 knows no name for it in
// __builtin_cpu_supports.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace megamoe::cpu {

// The tiles and their bf16 products, with their state enabled by the operating system (Intel SDM
// volume 1, 18.3; CPUID leaf 7).
inline bool has_amx() {
  constexpr uint32_t kOsXsave = 1u << 27;                  // leaf 1, ECX
  constexpr uint32_t kTilesAndBf16 = 1u << 24 | 1u << 22;  // leaf 7, EDX
  constexpr uint32_t kTileState = 1u << 18 | 1u << 17;     // XCR0
  uint32_t eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTilesAndBf16) != kTilesAndBf16) return false;
  // The intrinsic would need its own instruction set.
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & kTileState) == kTileState;
}

}  // namespace megamoe::cpu
#endif
