#include "megamoe/cpu/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <ctime>

namespace megamoe::cpu {
namespace {

// The kernel compares 32 bits; the low half changes with every sequence number.
uint32_t* low_half(Word& word) {
  constexpr int kIndex = std::endian::native == std::endian::little ? 0 : 1;
  return reinterpret_cast<uint32_t*>(&word.value) + kIndex;
}

}  // namespace

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

void futex_sleep(Word& word, uint64_t seen, uint64_t timeout_ns) {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  // Any way of returning, a signal included, leads to another look at the word.
  syscall(SYS_futex, low_half(word), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr, 0);
}

void futex_wake_all(Word& word) {
  syscall(SYS_futex, low_half(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Backoff::pause(Word& word, uint64_t seen, const AbortWord& abort, uint64_t deadline_ns) {
  if (spins_ < kSpins) {
    ++spins_;
    for (int i = 0; i < kPausesPerSpin; ++i) {
      cpu_relax();
      if (__atomic_load_n(&word.value, __ATOMIC_RELAXED) != seen) return;
    }
    return;
  }
  const uint64_t elapsed = elapsed_ns();
  if (elapsed < kYieldNs) {
    sched_yield();
    return;
  }
  if (elapsed >= deadline_ns) return;
  __atomic_fetch_add(&word.sleepers, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&word.value, __ATOMIC_SEQ_CST) == seen &&
      __atomic_load_n(&abort.value, __ATOMIC_SEQ_CST) == 0) {
    futex_sleep(word, seen, std::min(kMostSleepNs, deadline_ns - elapsed));
  }
  __atomic_fetch_sub(&word.sleepers, 1, __ATOMIC_SEQ_CST);
}

}  // namespace megamoe::cpu
