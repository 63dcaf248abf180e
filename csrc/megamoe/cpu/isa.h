// Instruction-set levels of the CPU kernels and their choice at run time.
#pragma once

#include <string>
#include <vector>

namespace megamoe::cpu {

enum class Isa { Portable = 0, Avx2 = 1, Avx512 = 2, Avx512Bf16 = 3, Amx = 4 };
inline constexpr int kIsaCount = 5;

// Isa::Amx is "amx-emulated" in a build whose tile instructions are software (AFD_AMX_EMULATED).
const char* isa_name(Isa isa);

// The levels this machine can execute, lowest first.
std::vector<Isa> supported_isas();

// The level in use: the machine's best unless AFD_ISA or set_isa chose another. Matrices keep the
// level that was in use when they were made. Throws AmxMismatch if that is AMX and check_amx fails.
Isa current_isa();

// Forces a level; throws std::invalid_argument if the machine cannot execute it, AmxMismatch as
// above. For tests and measurements; not to be called while kernels run.
void set_isa(Isa isa);
void set_isa(const std::string& name);

}  // namespace megamoe::cpu

// Code between MEGAMOE_TARGET(...) and MEGAMOE_TARGET_END is compiled for the named instruction
// set. Standard headers come before it, so that no shared inline function is built with it.
#define MEGAMOE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define MEGAMOE_TARGET(features) \
  MEGAMOE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define MEGAMOE_TARGET_END MEGAMOE_PRAGMA(clang attribute pop)
#else
#define MEGAMOE_TARGET(features) \
  MEGAMOE_PRAGMA(GCC push_options) MEGAMOE_PRAGMA(GCC target(features))
#define MEGAMOE_TARGET_END MEGAMOE_PRAGMA(GCC pop_options)
#endif
#define MEGAMOE_AVX2_FEATURES "avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt"
#define MEGAMOE_AVX512_INSTRUCTIONS \
  "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt"
#if defined(__clang__)
#define MEGAMOE_AVX512_FEATURES MEGAMOE_AVX512_INSTRUCTIONS
#else
#define MEGAMOE_AVX512_FEATURES MEGAMOE_AVX512_INSTRUCTIONS ",prefer-vector-width=512"
#endif
