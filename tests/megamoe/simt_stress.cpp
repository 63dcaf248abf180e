// SIMT kernels on the CPU runner, every rank a thread over one mapping, several steps back to back.
// Meant for the sanitizers, which see every CUDA thread as a thread of its own.
//
//   megamoe-simt-stress SEED ROUNDS      prints one line and exits 0, or says what differed
//   megamoe-simt-stress missing-barrier  a race between CUDA threads that a sanitizer must report
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "megamoe/simt/entry.h"
#include "megamoe/simt/runner/block.h"
#include "tests/megamoe/stress_world.h"

namespace {

using namespace stress;
using megamoe::cpu::Pool;

constexpr unsigned kThreads = 4;

void check(int status, const MegamoeSimtError& error) {
  if (status != MEGAMOE_SIMT_OK) throw std::runtime_error(error.text);
}

struct Matrices {
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> down;
};

class World {
 public:
  World(Random& random, const Shape& shape)
      : shape_(shape),
        reference_(shape.moe_layers, all(shape), shape.hidden, kWidth,
                   megamoe::cpu::WeightType::FP32),
        memory_(make_domain(shape)) {
    for (int layer = 0; layer < shape.moe_layers; ++layer) {
      for (int e = 0; e < shape.experts; ++e) {
        weights_.push_back({random_weight(random, kWidth, shape.hidden),
                            random_weight(random, kWidth, shape.hidden),
                            random_weight(random, shape.hidden, kWidth)});
        const Matrices& w = weights_.back();
        reference_.bank().load(layer, e, w.gate.data(), w.up.data(), w.down.data());
      }
    }
    domain_ = {memory_->memory().base,
               shape.attention_ranks,
               shape.ffn_ranks,
               shape.lanes,
               shape.max_tokens,
               shape.hidden,
               shape.top_k,
               shape.experts,
               shape.moe_layers,
               static_cast<int32_t>(shape.wire),
               static_cast<int32_t>(shape.scale_format),
               static_cast<int32_t>(shape.return_mode),
               0};
  }

  void run(const std::vector<Step>& steps) {
    std::vector<std::string> ends(static_cast<size_t>(shape_.attention_ranks + shape_.ffn_ranks));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      threads.emplace_back([this, &ends, &steps, rank] {
        try {
          const int index = static_cast<int>(rank);
          if (index < shape_.attention_ranks) attend(index, steps);
          if (index >= shape_.attention_ranks) serve(index - shape_.attention_ranks, steps);
        } catch (const std::exception& error) {
          ends[rank] = error.what();
          MegamoeSimtError ignored;
          megamoe_simt_raise_abort(&domain_, static_cast<int>(rank), &ignored);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (const std::string& end : ends) {
      if (!end.empty()) all += end + "\n";
    }
    if (!all.empty()) throw std::runtime_error(all);
  }

 private:
  static std::vector<int32_t> all(const Shape& shape) {
    std::vector<int32_t> ids;
    for (int e = 0; e < shape.experts; ++e) ids.push_back(e);
    return ids;
  }

  void attend(int rank, const std::vector<Step>& steps) {
    MegamoeSimtError error;
    MegamoeSimtAttention* side = nullptr;
    check(megamoe_simt_open_attention(&domain_, rank, owner_table(shape_).data(), kDeadline_ns,
                                      kThreads, &side, &error),
          error);
    for (size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      if (std::find(step.ranks.begin(), step.ranks.end(), rank) == step.ranks.end()) continue;
      for (int layer = 0; layer <= shape_.moe_layers; ++layer) {
        for (int l = 0; l < step.lanes; ++l) {
          const Lane& lane = step.work[static_cast<size_t>(rank)][static_cast<size_t>(l)];
          if (layer > 0) collect(side, layer - 1, l, lane);
          if (layer == shape_.moe_layers) continue;
          check(megamoe_simt_dispatch(side, s, layer, l, x_of(lane, layer), shape_.hidden,
                                      ids_of(lane, layer), weights_of(lane, layer), lane.tokens,
                                      &error),
                error);
        }
      }
    }
    megamoe_simt_close_attention(side);
  }

  void collect(MegamoeSimtAttention* side, int layer, int l, const Lane& lane) {
    MegamoeSimtError error;
    const auto elements = static_cast<size_t>(lane.tokens) * static_cast<size_t>(shape_.hidden);
    std::vector<float> out(elements, 1e30f);
    check(megamoe_simt_combine(side, l, out.data(), shape_.hidden, &error), error);
    std::vector<float> expected(elements);
    const std::lock_guard<std::mutex> lock(reference_lock_);
    reference_.forward(
        pool_, layer,
        {x_of(lane, layer), shape_.hidden, ids_of(lane, layer), weights_of(lane, layer),
         expected.data(), shape_.hidden, lane.tokens, shape_.top_k});
    for (size_t i = 0; i < elements; ++i) {
      if (!(std::fabs(out[i] - expected[i]) <= 1e-4f * (1.0f + std::fabs(expected[i])))) {
        throw std::runtime_error("a combined row differs");
      }
    }
  }

  void serve(int rank, const std::vector<Step>& steps) {
    MegamoeSimtError error;
    MegamoeSimtFfn* side = nullptr;
    const std::vector<int32_t> owner = owner_table(shape_);
    check(megamoe_simt_open_ffn(&domain_, rank, owner.data(), kWidth, kDeadline_ns, kThreads, &side,
                                &error),
          error);
    for (int layer = 0; layer < shape_.moe_layers; ++layer) {
      for (int e = 0; e < shape_.experts; ++e) {
        if (!serves(rank, e)) continue;
        const Matrices& w = weights_[static_cast<size_t>(layer * shape_.experts + e)];
        check(megamoe_simt_load(side, layer, e, w.gate.data(), w.up.data(), w.down.data(), &error),
              error);
      }
    }
    for (size_t s = 0; s < steps.size(); ++s) {
      check(megamoe_simt_serve(side, s, steps[s].lanes, steps[s].ranks.data(),
                               static_cast<int>(steps[s].ranks.size()), &error),
            error);
    }
    megamoe_simt_close_ffn(side);
  }

  bool serves(int ffn_rank, int expert) const {
    for (int a = 0; a < shape_.attention_ranks; ++a) {
      if (owner_of(shape_, a, expert) == ffn_rank) return true;
    }
    return false;
  }

  size_t row(const Lane& lane, int layer) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(lane.tokens);
  }
  const float* x_of(const Lane& lane, int layer) const {
    return lane.x.data() + row(lane, layer) * static_cast<size_t>(shape_.hidden);
  }
  const int32_t* ids_of(const Lane& lane, int layer) const {
    return lane.ids.data() + row(lane, layer) * static_cast<size_t>(shape_.top_k);
  }
  const float* weights_of(const Lane& lane, int layer) const {
    return lane.weights.data() + row(lane, layer) * static_cast<size_t>(shape_.top_k);
  }

  Shape shape_;
  std::vector<Matrices> weights_;
  ColocatedExperts reference_;
  std::mutex reference_lock_;
  Pool pool_{1};
  std::unique_ptr<Domain> memory_;
  MegamoeSimtDomain domain_{};
};

// Each CUDA thread reads what its neighbour wrote, without a barrier in between.
int missing_barrier() {
  int cells[kThreads] = {};
  int sums[kThreads] = {};
  megamoe::simt::runner::run_block(kThreads, [&] {
    const unsigned me = megamoe::simt::runner::thread_index().x;
    cells[me] = 1;
    sums[me] = cells[(me + 1) % kThreads];
  });
  std::printf("%d\n", sums[0]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "missing-barrier") == 0) return missing_barrier();
  if (argc != 3) {
    std::fprintf(stderr, "usage: megamoe-simt-stress SEED ROUNDS | missing-barrier\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const uint64_t rounds = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t round = 0; round < rounds; ++round) {
    Random random(seed + round);
    Shape shape = random_shape(random);
    shape.return_mode = static_cast<megamoe::ReturnMode>(below(random, 2));
    std::vector<Step> steps;
    for (int i = 0; i < 3; ++i) steps.push_back(random_step(random, shape));
    try {
      World(random, shape).run(steps);
    } catch (const std::exception& error) {
      std::printf("round %llu: %s\n", static_cast<unsigned long long>(seed + round), error.what());
      return 1;
    }
  }
  std::printf("%llu rounds agree\n", static_cast<unsigned long long>(rounds));
  return 0;
}
