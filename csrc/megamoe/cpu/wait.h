// Memory order and waiting on the CPU: spin, then yield, then a futex in the shared mapping.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "megamoe/cpu/pool.h"
#include "megamoe/sequence.h"

namespace megamoe::cpu {

// Spins are for a partner on another core, which answers in a tenth of a microsecond; yields are
// for one that shares this core, which every spin keeps waiting. A yield that nobody takes costs
// 0.5 us.
class Backoff {
 public:
  // False once it is time to sleep instead.
  bool spin(uint64_t waited_ns) {
    if (spins_ < kSpins) {
      for (int i = 0; i < kPausesPerSpin; ++i) cpu_relax();
      ++spins_;
      return true;
    }
    if (waited_ns >= kYield_ns) return false;
    sched_yield();
    return true;
  }

 private:
  static constexpr int kPausesPerSpin = 8;
  static constexpr int kSpins = 12;  // 100 pauses: 1-4 us
  static constexpr uint64_t kYield_ns = 1'000'000;
  int spins_ = 0;
};

// Everything is sequentially consistent where a sleeper and a waker must not miss each other; see
// await. On x86-64 that costs one exchange per publication.
struct Waiting {
  using Backoff = cpu::Backoff;

  static uint64_t load_acquire(const uint64_t& value) {
    return std::atomic_ref(const_cast<uint64_t&>(value)).load(std::memory_order_seq_cst);
  }
  static void store_release(uint64_t& value, uint64_t next) {
    std::atomic_ref(value).store(next, std::memory_order_seq_cst);
  }
  static void store_if_zero(uint64_t& value, uint64_t next) {
    uint64_t zero = 0;
    std::atomic_ref(value).compare_exchange_strong(zero, next, std::memory_order_seq_cst);
  }
  static void wake_if_sleeping(Word& word) {
    const std::atomic_ref sleeping(word.sleeping);
    if (sleeping.load(std::memory_order_seq_cst) != 0) wake(word);
  }
  static void wake(Word& word) {
    std::atomic_ref(word.sleeping).store(0, std::memory_order_seq_cst);
    syscall(SYS_futex, &word.sleeping, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  static void announce_sleep(Word& word) {
    std::atomic_ref(word.sleeping).store(1, std::memory_order_seq_cst);
  }
  // Sleeps until woken, at most `limit_ns`; may return early.
  static void sleep(Word& word, uint64_t limit_ns) {
    // A waker that died between its store and its wake-up must not cost more than this.
    constexpr uint64_t kLongest_ns = 50'000'000;
    const uint64_t sleep_ns = limit_ns < kLongest_ns ? limit_ns : kLongest_ns;
    const timespec timeout{0, static_cast<long>(sleep_ns)};
    syscall(SYS_futex, &word.sleeping, FUTEX_WAIT, 1, &timeout, nullptr, 0);
  }
  static uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
  }
};

}  // namespace megamoe::cpu
