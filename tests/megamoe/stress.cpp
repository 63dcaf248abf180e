// The protocol under stress: every rank a thread over one mapping, random sizes and delays, several
// steps back to back; then an abort at a random moment. Meant for the thread sanitizer, which sees
// the ranks' accesses because they share addresses.
//
//   megamoe-stress SEED ROUNDS
//
// Prints one line and exits 0, or says what differed and exits 1.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/colocated.h"
#include "megamoe/cpu/domain.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"

namespace {

using megamoe::Shape;
using megamoe::cpu::ColocatedExperts;
using megamoe::cpu::Domain;
using megamoe::cpu::Pool;
using megamoe::cpu::Target;
using Random = std::mt19937_64;

constexpr uint64_t kDeadline_ns = 60'000'000'000;

int below(Random& random, int end) {
  return static_cast<int>(random() % static_cast<uint64_t>(end));
}

// Nothing, a yield, or long enough that the partner sleeps.
void delay(Random& random) {
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

Shape random_shape(Random& random) {
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

Lane random_lane(Random& random, const Shape& shape) {
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

Step random_step(Random& random, const Shape& shape) {
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

std::vector<float> random_weight(Random& random, int rows, int cols) {
  std::normal_distribution<float> normal(0.0f, 0.2f);
  std::vector<float> weight(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  for (float& value : weight) value = normal(random);
  return weight;
}

// Experts are dealt to FFN ranks in turn; expert 0 lies on every rank, which share its sources.
int owner_of(const Shape& shape, int attention_rank, int expert) {
  return (expert == 0 ? attention_rank : expert) % shape.ffn_ranks;
}

// [attention_ranks][experts]
std::vector<int32_t> owner_table(const Shape& shape) {
  std::vector<int32_t> table;
  for (int a = 0; a < shape.attention_ranks; ++a) {
    for (int e = 0; e < shape.experts; ++e) table.push_back(owner_of(shape, a, e));
  }
  return table;
}

// The experts of every FFN rank, and all of them for the colocated reference.
struct Banks {
  std::vector<std::unique_ptr<ColocatedExperts>> ranks;
  std::unique_ptr<ColocatedExperts> all;

  Banks(Random& random, const Shape& shape) {
    constexpr int kWidth = 20;
    const auto make = [&](const std::vector<int32_t>& ids) {
      return std::make_unique<ColocatedExperts>(shape.moe_layers, ids, shape.hidden, kWidth,
                                                megamoe::cpu::WeightType::FP32);
    };
    std::vector<std::vector<int32_t>> owned(static_cast<size_t>(shape.ffn_ranks));
    std::vector<int32_t> every;
    for (int e = 0; e < shape.experts; ++e) {
      for (int f = 0; f < shape.ffn_ranks; ++f) {
        if (e == 0 || e % shape.ffn_ranks == f) owned[static_cast<size_t>(f)].push_back(e);
      }
      every.push_back(e);
    }
    for (const auto& ids : owned) ranks.push_back(make(ids));
    all = make(every);
    for (int layer = 0; layer < shape.moe_layers; ++layer) {
      for (int e = 0; e < shape.experts; ++e) {
        const auto gate = random_weight(random, kWidth, shape.hidden);
        const auto up = random_weight(random, kWidth, shape.hidden);
        const auto down = random_weight(random, shape.hidden, kWidth);
        for (int f = 0; f < shape.ffn_ranks; ++f) {
          if (e != 0 && e % shape.ffn_ranks != f) continue;
          ranks[static_cast<size_t>(f)]->bank().load(layer, e, gate.data(), up.data(), down.data());
        }
        all->bank().load(layer, e, gate.data(), up.data(), down.data());
      }
    }
  }
};

class World {
 public:
  World(Random& random, const Shape& shape)
      : shape_(shape), banks_(random, shape), domain_(make_domain(shape)) {}

  // All ranks over all steps; what any threw, as text ("" if all went well).
  std::vector<std::string> run(const std::vector<Step>& steps, uint64_t seed,
                               std::chrono::microseconds abort_after = {}) {
    std::vector<std::string> ends(static_cast<size_t>(shape_.attention_ranks + shape_.ffn_ranks));
    std::vector<std::thread> threads;
    const auto start = [&](size_t rank, auto&& body) {
      threads.emplace_back([&ends, rank, seed, body] {
        Random random(seed + rank);
        try {
          body(random);
        } catch (const std::exception& error) {
          ends[rank] = error.what();
        }
      });
    };
    for (int a = 0; a < shape_.attention_ranks; ++a) {
      start(static_cast<size_t>(a),
            [this, a, &steps](Random& random) { attend(a, steps, random); });
    }
    for (int f = 0; f < shape_.ffn_ranks; ++f) {
      start(static_cast<size_t>(shape_.attention_ranks + f),
            [this, f, &steps](Random& random) { serve(f, steps, random); });
    }
    if (abort_after.count() > 0) {
      std::this_thread::sleep_for(abort_after);
      domain_->raise_abort(0);
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

 private:
  static std::unique_ptr<Domain> make_domain(const Shape& shape) {
    const megamoe::Layout layout = megamoe::make_layout(shape);
    const int fd = memfd_create("megamoe-stress", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(layout.total_bytes)) != 0) {
      throw std::runtime_error("no memfd");
    }
    auto domain = std::make_unique<Domain>(fd, layout, true, 0);
    close(fd);
    return domain;
  }

  size_t row(int layer, const Lane& lane) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(lane.tokens);
  }

  void attend(int rank, const std::vector<Step>& steps, Random& random) {
    megamoe::AttentionSide<Target> side(domain_->memory(), rank, kDeadline_ns);
    const auto hidden = static_cast<size_t>(shape_.hidden);
    const auto top_k = static_cast<size_t>(shape_.top_k);
    for (size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      if (std::find(step.ranks.begin(), step.ranks.end(), rank) == step.ranks.end()) continue;
      for (int layer = 0; layer <= shape_.moe_layers; ++layer) {
        for (int l = 0; l < step.lanes; ++l) {
          const Lane& lane = step.work[static_cast<size_t>(rank)][static_cast<size_t>(l)];
          delay(random);
          if (layer > 0) collect(side, layer - 1, l, lane);
          if (layer == shape_.moe_layers) continue;
          delay(random);
          side.dispatch(s, layer, l, lane.x.data() + row(layer, lane) * hidden, shape_.hidden,
                        lane.ids.data() + row(layer, lane) * top_k,
                        lane.weights.data() + row(layer, lane) * top_k, lane.tokens);
        }
      }
    }
  }

  void collect(megamoe::AttentionSide<Target>& side, int layer, int l, const Lane& lane) {
    const auto hidden = static_cast<size_t>(shape_.hidden);
    std::vector<float> out(static_cast<size_t>(lane.tokens) * hidden, 1e30f);
    side.combine(l, out.data(), shape_.hidden);
    if (out != expected(layer, lane)) throw std::runtime_error("a combined row differs");
  }

  std::vector<float> expected(int layer, const Lane& lane) {
    const auto hidden = static_cast<size_t>(shape_.hidden);
    const auto top_k = static_cast<size_t>(shape_.top_k);
    std::vector<float> out(static_cast<size_t>(lane.tokens) * hidden);
    const std::lock_guard<std::mutex> lock(reference_);
    banks_.all->forward(
        pool_, layer,
        {lane.x.data() + row(layer, lane) * hidden, shape_.hidden,
         lane.ids.data() + row(layer, lane) * top_k, lane.weights.data() + row(layer, lane) * top_k,
         out.data(), shape_.hidden, lane.tokens, shape_.top_k});
    return out;
  }

  void serve(int rank, const std::vector<Step>& steps, Random& random) {
    Pool pool(1 + rank % 2);
    const auto& bank = banks_.ranks[static_cast<size_t>(rank)]->bank();
    const std::vector<int32_t> owner = owner_table(shape_);
    domain_->agree_on_owners(owner);
    const std::vector<int32_t> held = bank.owned_index(shape_.experts);
    std::vector<int32_t> index(owner.size(), -1);
    for (size_t i = 0; i < owner.size(); ++i) {
      if (owner[i] == rank) index[i] = held[i % held.size()];
    }
    megamoe::FfnSide<Target> side(domain_->memory(), rank, std::move(index),
                                  Target::Experts(bank, pool), kDeadline_ns);
    for (size_t s = 0; s < steps.size(); ++s) {
      delay(random);
      side.serve(s, steps[s].lanes, steps[s].ranks);
    }
  }

  Shape shape_;
  Banks banks_;
  std::unique_ptr<Domain> domain_;
  std::mutex reference_;
  Pool pool_{1};
};

bool check(const std::vector<std::string>& ends, bool abort_allowed, uint64_t round) {
  bool good = true;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const bool aborted =
        ends[rank].find("was told to abort because of rank 0") != std::string::npos;
    if (ends[rank].empty() || (abort_allowed && aborted)) continue;
    std::printf("round %llu, rank %zu: %s\n", static_cast<unsigned long long>(round), rank,
                ends[rank].c_str());
    good = false;
  }
  return good;
}

bool run_round(uint64_t seed) {
  Random random(seed);
  const Shape shape = random_shape(random);
  std::vector<Step> steps;
  for (int i = 0; i < 8; ++i) steps.push_back(random_step(random, shape));
  World whole(random, shape);
  if (!check(whole.run(steps, seed), false, seed)) return false;
  World aborted(random, shape);
  const std::chrono::microseconds after(1 + below(random, 20'000));
  return check(aborted.run(steps, seed + 1, after), true, seed);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: megamoe-stress SEED ROUNDS\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const uint64_t rounds = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t round = 0; round < rounds; ++round) {
    if (!run_round(seed + round)) return 1;
  }
  std::printf("%llu rounds agree\n", static_cast<unsigned long long>(rounds));
  return 0;
}
