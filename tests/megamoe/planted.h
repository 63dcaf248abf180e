// The targets of the stress program: the CPU target, or with a build flag one with a bug that the
// thread sanitizer must report.
#pragma once

#include <atomic>
#include <cstdint>

#include "megamoe/cpu/target.h"

namespace stress {

#if defined(AFD_PLANT_MISSING_RELEASE)

// A word is published before what it announces.
struct AttentionTarget : megamoe::cpu::Target {
  static void store_release(uint64_t& value, uint64_t next) {
    std::atomic_ref(value).store(next, std::memory_order_relaxed);
  }
};
using FfnTarget = megamoe::cpu::Target;

#elif defined(AFD_PLANT_EARLY_REUSE)

// DONE is taken as reached one number early: IN is written again while FFN ranks read it.
struct AttentionTarget : megamoe::cpu::Target {
  static uint64_t load_acquire(const uint64_t& value) {
    const uint64_t seen = megamoe::cpu::Target::load_acquire(value);
    return seen == 0 ? 0 : seen + 1;
  }
};
using FfnTarget = megamoe::cpu::Target;

#else

using AttentionTarget = megamoe::cpu::Target;
using FfnTarget = megamoe::cpu::Target;

#endif

}  // namespace stress
