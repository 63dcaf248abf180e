// A pool of persistent threads for short kernels.
//
// The caller works too and can finish every index alone: a worker that the operating system does
// not schedule costs nothing, because the caller waits only for indices that were already taken.
// Idle threads spin for a few microseconds, yield for a few tens, then sleep in a futex.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace megamoe::cpu {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  // `threads` counts the caller; 1 starts no thread.
  explicit Pool(int threads) : threads_(threads) {
    if (threads < 1 || threads > kMaxThreads) {
      throw std::invalid_argument("threads must be in [1, " + std::to_string(kMaxThreads) +
                                  "], got " + std::to_string(threads));
    }
    workers_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(i) once for every i in [0, n), on any thread of the pool, and returns when all calls
  // have returned. The first exception thrown by fn is rethrown here, after the others finished.
  template <class F>
  void parallel_for(int n, F&& fn) {
    if (n <= 1 || threads_ == 1) {
      for (int i = 0; i < n; ++i) fn(i);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    run(
        n, [](void* context, int i) { (*static_cast<Fn*>(context))(i); },
        const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

 private:
  using Call = void (*)(void* context, int index);
  static constexpr int kMaxThreads = 1024;
  static constexpr int kSpins = 64;    // a pause is 40-140 cycles: about 2 us
  static constexpr int kYields = 100;  // a yield is 0.2-0.5 us where nobody else wants the core

  void run(int n, Call call, void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw std::logic_error("two kernels ran on one Pool at the same time; use one Pool a thread");
    }
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    count_.store(n, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    // The ticket carries the epoch, so a worker that wakes late can never take an index of a newer
    // kernel with an older kernel's function.
    ticket_.store((uint64_t{epoch} << 32) | static_cast<uint32_t>(n), std::memory_order_release);
    epoch_.store(epoch, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
    take(epoch);
    wait_finished(n);
    std::exception_ptr error;
    if (failed_.exchange(false)) std::swap(error, error_);
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
  }

  void take(uint32_t epoch) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket >> 32) == epoch) {
      const uint32_t remaining = static_cast<uint32_t>(ticket);
      if (remaining == 0) return;
      const Call call = call_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      const int n = count_.load(std::memory_order_relaxed);
      // Succeeding proves that this kernel still had an index to give, so the three loads above
      // saw its values and not the next kernel's.
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
        continue;
      }
      invoke(call, context, n - static_cast<int>(remaining));
      if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == n) finished_.notify_one();
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void invoke(Call call, void* context, int index) {
    try {
      call(context, index);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex_);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  void wait_finished(int n) {
    for (int i = 0; i < kSpins; ++i) {
      if (finished_.load(std::memory_order_acquire) == n) return;
      cpu_relax();
    }
    int seen = finished_.load(std::memory_order_acquire);
    for (int i = 0; i < kYields && seen != n; ++i) {
      sched_yield();
      seen = finished_.load(std::memory_order_acquire);
    }
    while (seen != n) {
      finished_.wait(seen, std::memory_order_acquire);
      seen = finished_.load(std::memory_order_acquire);
    }
  }

  uint32_t wait_epoch(uint32_t seen) {
    for (int i = 0; i < kSpins + kYields; ++i) {
      const uint32_t now = epoch_.load(std::memory_order_acquire);
      if (now != seen) return now;
      if (i < kSpins) {
        cpu_relax();
      } else {
        sched_yield();
      }
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return epoch_.load(std::memory_order_acquire);
  }

  void work() {
    uint32_t seen = 0;
    for (;;) {
      seen = wait_epoch(seen);
      if (stop_.load()) return;
      take(seen);
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int> count_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int> finished_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace megamoe::cpu
