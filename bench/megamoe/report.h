// What a microbenchmark says: its time beside the machine's limit, for people or as JSON.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "options.h"

namespace bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A part of a measurement and what bounds it.
struct Phase {
  std::string name;
  double us;
  double bytes;
  double flops;
  double least_us = 0;  // where something else is the limit
  // What the time of other runs leaves; may come out negative, and has no limit.
  bool by_difference = false;
};

struct Limits {
  double gbps;    // what `bytes` move at, at most
  double gflops;  // 0 where nothing is multiplied
  const char* traffic;
  int threads = 1;  // on which both were measured at once

  double us(const Phase& phase) const {
    const double memory_us = phase.bytes / gbps * 1e-3;
    const double compute_us = gflops > 0 ? phase.flops / gflops * 1e-3 : 0;
    return phase.least_us > 0 ? phase.least_us : std::max(memory_us, compute_us);
  }
};

// `phases` explain where the whole's time goes; `extra` are further figures by name.
void report(const char* program, const Options& options, const Phase& whole, const Limits& limits,
            const std::vector<Phase>& phases,
            const std::vector<std::pair<std::string, double>>& extra = {});

}  // namespace bench
