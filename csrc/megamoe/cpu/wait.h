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
  static constexpr int kSpins = 12;  // 96 pauses: 1-4 us
  static constexpr uint64_t kYield_ns = 1'000'000;
  int spins_ = 0;
};

// Everything is sequentially consistent where a sleeper and a waker must not miss each other; see
// await. On x86-64 that costs one exchange per publication. Access is what touches memory and the
// kernel: the machine's, or the model checker's.
template <class Access>
struct WaitingOver {
  static uint64_t load_acquire(const uint64_t& value) { return Access::load(value); }
  static void store_release(uint64_t& value, uint64_t next) { Access::store(value, next); }
  static void store_if_zero(uint64_t& value, uint64_t next) { Access::store_if_zero(value, next); }
  static void wake_if_sleeping(Word& word) {
    if (Access::load(word.sleepers) % 2 != 0) wake(word);
  }
  static void wake(Word& word) {
    Access::add(word.sleepers, 1);
    Access::futex_wake(word.sleepers);
  }
  // Returns the ticket to sleep with.
  static uint32_t announce_sleep(Word& word) { return Access::bit_or(word.sleepers, 1) | 1; }
  // Sleeps until woken, at most `limit_ns`; not at all with a stale ticket. May return early.
  static void sleep(Word& word, uint32_t ticket, uint64_t limit_ns) {
    // A waker that died between its store and its wake-up must not cost more than this.
    constexpr uint64_t kLongest_ns = 50'000'000;
    Access::futex_wait(word.sleepers, ticket, limit_ns < kLongest_ns ? limit_ns : kLongest_ns);
  }
  static uint64_t now_ns() { return Access::now_ns(); }
};

struct Machine {
  template <class T>
  static T load(const T& value) {
    return std::atomic_ref(const_cast<T&>(value)).load(std::memory_order_seq_cst);
  }
  template <class T>
  static void store(T& value, T next) {
    std::atomic_ref(value).store(next, std::memory_order_seq_cst);
  }
  // Both return what was there before.
  static uint32_t add(uint32_t& value, uint32_t more) {
    return std::atomic_ref(value).fetch_add(more, std::memory_order_seq_cst);
  }
  static uint32_t bit_or(uint32_t& value, uint32_t bits) {
    return std::atomic_ref(value).fetch_or(bits, std::memory_order_seq_cst);
  }
  static void store_if_zero(uint64_t& value, uint64_t next) {
    uint64_t zero = 0;
    std::atomic_ref(value).compare_exchange_strong(zero, next, std::memory_order_seq_cst);
  }
  static void futex_wake(uint32_t& value) {
    syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  // Unless value is `expected`, returns at once.
  static void futex_wait(uint32_t& value, uint32_t expected, uint64_t limit_ns) {
    const timespec timeout{0, static_cast<long>(limit_ns)};
    syscall(SYS_futex, &value, FUTEX_WAIT, expected, &timeout, nullptr, 0);
  }
  static uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
  }
};

struct Waiting : WaitingOver<Machine> {
  using Backoff = cpu::Backoff;
};

}  // namespace megamoe::cpu
