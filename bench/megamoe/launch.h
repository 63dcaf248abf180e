// A launch in one process: its memory, and tokens to send through it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megamoe/cpu/domain.h"
#include "megamoe/cpu/target.h"

namespace bench {

using Target = megamoe::cpu::Target;

constexpr uint64_t kDeadlineNs = 60'000'000'000;

inline std::unique_ptr<megamoe::cpu::Domain> make_domain(const megamoe::Shape& shape) {
  const megamoe::Layout layout = megamoe::make_layout(shape);
  const int fd = memfd_create("megamoe-bench", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(layout.total_bytes)) != 0) {
    throw std::runtime_error("no shared memory of " + std::to_string(layout.total_bytes) +
                             " bytes for the buffers");
  }
  auto domain = std::make_unique<megamoe::cpu::Domain>(fd, layout, true, 0);
  close(fd);
  std::vector<int32_t> owners;
  for (int a = 0; a < shape.attention_ranks; ++a) {
    for (int e = 0; e < shape.experts; ++e) owners.push_back(e % shape.ffn_ranks);
  }
  domain->agree_on_owners(owners);
  return domain;
}

// Rows of any numbers and uniform routes to distinct experts.
struct Tokens {
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Tokens(const megamoe::Shape& shape, int tokens, uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto rows = static_cast<size_t>(tokens);
    x.resize(rows * static_cast<size_t>(shape.hidden));
    for (float& value : x) value = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
    weights.assign(rows * static_cast<size_t>(shape.top_k), 1.0f / static_cast<float>(shape.top_k));
    std::vector<int32_t> experts(static_cast<size_t>(shape.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (int token = 0; token < tokens; ++token) {
      for (int slot = 0; slot < shape.top_k; ++slot) {
        const auto left = static_cast<uint64_t>(shape.experts - slot);
        std::swap(experts[static_cast<size_t>(slot)],
                  experts[static_cast<size_t>(slot) + random() % left]);
        ids.push_back(experts[static_cast<size_t>(slot)]);
      }
    }
  }
};

// Says in the place of every FFN rank that it served, so that a lane can be combined.
inline void say_done(const megamoe::Memory& memory, int rank, uint64_t step, int first_ffn_rank,
                     int lane = 0) {
  for (int f = first_ffn_rank; f < memory.layout.shape.ffn_ranks; ++f) {
    megamoe::publish<Target>(memory.done(rank, lane, f), memory.sequence(step, 0));
  }
}

}  // namespace bench
