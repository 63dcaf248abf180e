// What time is measured in.
#pragma once

#include <time.h>

#include <cstdint>

namespace bench {

struct Clock {
  // Wall time; or this thread's own, which a busy machine's other work does not enter (it still
  // shares memory bandwidth and caches).
  clockid_t id = CLOCK_MONOTONIC;

  uint64_t now_ns() const {
    timespec now;
    clock_gettime(id, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
  }
  double elapsed_us(uint64_t start_ns) const {
    return static_cast<double>(now_ns() - start_ns) * 1e-3;
  }
};

}  // namespace bench
