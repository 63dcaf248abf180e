// Random launches for the programs that run every rank as a thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "megamoe/cpu/colocated.h"
#include "megamoe/cpu/domain.h"
#include "megamoe/layout.h"
#include "tests/megamoe/stress_weights.h"

namespace stress {

using megamoe::Shape;
using megamoe::cpu::ColocatedExperts;
using megamoe::cpu::Domain;
using megamoe::cpu::WeightType;

inline constexpr uint64_t kDeadline_ns = 60'000'000'000;
inline constexpr int kWidth = 20;

// Nothing, a yield, or long enough that the partner sleeps.
inline void delay(Random& random) {
  const int kind = below(random, 40);
  if (kind < 8) std::this_thread::yield();
  if (kind == 39) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// One lane of one rank in one step, for every layer.
struct Lane {
  int tokens;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Step {
  int lanes;
  std::vector<int32_t> ranks;           // who takes part
  std::vector<std::vector<Lane>> work;  // [attention rank][lane]
};

inline Shape random_shape(Random& random) {
  Shape shape{};
  shape.attention_ranks = 1 + below(random, 3);
  shape.ffn_ranks = 1 + below(random, 2);
  shape.lanes = 1 + below(random, 3);
  shape.max_tokens = 1 + below(random, 6);
  shape.hidden = 17 + below(random, 60);
  shape.experts = 3 + below(random, 4);
  shape.top_k = 1 + below(random, 3);
  shape.moe_layers = 1 + below(random, 3);
  shape.wire = megamoe::Wire::FP32;  // whose results equal the colocated path's to the bit
  return shape;
}

inline Lane random_lane(Random& random, const Shape& shape) {
  std::normal_distribution<float> normal;
  Lane lane;
  lane.tokens = below(random, shape.max_tokens + 1);
  const auto rows = static_cast<size_t>(lane.tokens) * static_cast<size_t>(shape.moe_layers);
  lane.x.resize(rows * static_cast<size_t>(shape.hidden));
  lane.ids.resize(rows * static_cast<size_t>(shape.top_k));
  lane.weights.resize(lane.ids.size());
  for (float& value : lane.x) value = normal(random);
  for (int32_t& id : lane.ids) id = below(random, shape.experts + 1) - 1;
  for (float& weight : lane.weights) weight = normal(random);
  return lane;
}

inline Step random_step(Random& random, const Shape& shape) {
  Step step{1 + below(random, shape.lanes), {}, {}};
  for (int rank = 0; rank < shape.attention_ranks; ++rank) {
    if (rank == 0 || below(random, 4) > 0) step.ranks.push_back(rank);
    step.work.emplace_back();
    for (int lane = 0; lane < step.lanes; ++lane) {
      step.work.back().push_back(random_lane(random, shape));
    }
  }
  return step;
}

// Experts are dealt to FFN ranks in turn; expert 0 lies on every rank, which share its sources.
inline int owner_of(const Shape& shape, int attention_rank, int expert) {
  return (expert == 0 ? attention_rank : expert) % shape.ffn_ranks;
}

// [attention_ranks][experts]
inline std::vector<int32_t> owner_table(const Shape& shape) {
  std::vector<int32_t> table;
  for (int a = 0; a < shape.attention_ranks; ++a) {
    for (int e = 0; e < shape.experts; ++e) table.push_back(owner_of(shape, a, e));
  }
  return table;
}

inline bool holds(const Shape& shape, int ffn_rank, int expert) {
  return expert == 0 || expert % shape.ffn_ranks == ffn_rank;
}

// The experts of every FFN rank, and all of them for the colocated reference.
struct Banks {
  std::vector<std::unique_ptr<ColocatedExperts>> ranks;
  std::unique_ptr<ColocatedExperts> all;

  Banks(Random& random, const Shape& shape, WeightType type = WeightType::FP32) {
    const auto make = [&](const std::vector<int32_t>& ids) {
      return std::make_unique<ColocatedExperts>(shape.moe_layers, ids, shape.hidden, kWidth, type);
    };
    std::vector<std::vector<int32_t>> owned(static_cast<size_t>(shape.ffn_ranks));
    std::vector<int32_t> every;
    for (int e = 0; e < shape.experts; ++e) {
      for (int f = 0; f < shape.ffn_ranks; ++f) {
        if (holds(shape, f, e)) owned[static_cast<size_t>(f)].push_back(e);
      }
      every.push_back(e);
    }
    for (const auto& ids : owned) ranks.push_back(make(ids));
    all = make(every);
    for (int layer = 0; layer < shape.moe_layers; ++layer) {
      for (int e = 0; e < shape.experts; ++e) {
        const RandomExpert expert(random, shape.hidden, kWidth, type);
        for (int f = 0; f < shape.ffn_ranks; ++f) {
          if (holds(shape, f, e)) expert.load(ranks[static_cast<size_t>(f)]->bank(), layer, e);
        }
        expert.load(all->bank(), layer, e);
      }
    }
  }
};

// What an FFN rank's side wants: for each source and expert, the bank's index or -1.
inline std::vector<int32_t> owned_index(const Shape& shape, int ffn_rank,
                                        const megamoe::cpu::ExpertBank& bank) {
  const std::vector<int32_t> owner = owner_table(shape);
  const std::vector<int32_t> held = bank.owned_index(shape.experts);
  std::vector<int32_t> index(owner.size(), -1);
  for (size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] == ffn_rank) index[i] = held[i % held.size()];
  }
  return index;
}

inline std::unique_ptr<Domain> make_domain(const Shape& shape, uint64_t generation = 0) {
  const megamoe::Layout layout = megamoe::make_layout(shape);
  const int fd = memfd_create("megamoe-stress", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(layout.total_bytes)) != 0) {
    throw std::runtime_error("no memfd");
  }
  auto domain = std::make_unique<Domain>(fd, layout, true, generation);
  close(fd);
  return domain;
}

}  // namespace stress
