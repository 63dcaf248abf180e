// What this machine can do at most, measured: one thread's memory traffic and multiply-adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "clock.h"

namespace bench {

class Ceilings {
 public:
  explicit Ceilings(Clock clock);

  double read_gbps();
  // Bytes read plus bytes written; what a store reads first is not counted.
  double copy_gbps();
  // 2 per multiply-add of the level in use: of bf16 pairs if `pairs`, else of float32.
  double peak_gflops(bool pairs);

 private:
  static constexpr size_t kBytes = size_t{128} << 20;  // beyond any second- or third-level share
  struct Free {
    void operator()(std::byte* data) const;
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  static Buffer buffer(int value);

  Clock clock_;
  Buffer from_;
  Buffer to_;
  volatile uint64_t sink_ = 0;
};

}  // namespace bench
