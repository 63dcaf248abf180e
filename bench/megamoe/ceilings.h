// What this machine can do at most, measured: memory traffic and multiply-adds of some threads at
// once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "clock.h"
#include "megamoe/cpu/pool.h"

namespace bench {

class Ceilings {
 public:
  // For so many threads; each has a buffer of its own to read.
  explicit Ceilings(Clock clock, int threads = 1);

  int threads() const { return pool_.threads(); }
  // Of all threads at once, each reading its buffer.
  double read_gbps();
  // Of one thread: bytes read plus bytes written; what a store reads first is not counted.
  double copy_gbps();
  // Of all threads at once, 2 per multiply-add of the level in use: of bf16 pairs if `pairs`, else
  // of float32.
  double peak_gflops(bool pairs);

 private:
  static constexpr size_t kBytes = size_t{128} << 20;  // beyond any second- or third-level share
  struct Free {
    void operator()(std::byte* data) const;
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  static Buffer buffer(int value);

  // Calls work(i) on every thread at once, from a common start; returns the longest time.
  double together_ns(const std::function<void(size_t)>& work);

  Clock clock_;
  megamoe::cpu::Pool pool_;
  std::vector<Buffer> from_;
  Buffer to_;
  std::atomic<uint64_t> sink_ = 0;
};

}  // namespace bench
