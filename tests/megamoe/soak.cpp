// Many tiny steps back to back without a reset, every rank a thread over one mapping.
//
//   megamoe-soak STEPS BEFORE_WRAP
//
// The words' first number lies BEFORE_WRAP numbers below 2^64, so that a run of more numbers takes
// them through zero. Every combined row is compared, to the bit, with the colocated path's.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"
#include "tests/megamoe/stress_world.h"

namespace {

using namespace stress;
using megamoe::cpu::Pool;
using megamoe::cpu::Target;

constexpr uint64_t kGeneration = (uint64_t{1} << (64 - megamoe::kGenerationShift)) - 1;
constexpr size_t kInputs = 16;  // steps take turns

struct Input {
  Lane lane;
  std::vector<float> expected;
};

class Soak {
 public:
  Soak(const Shape& shape, uint64_t steps, uint64_t before_wrap)
      : shape_(shape),
        steps_(steps),
        first_step_(((uint64_t{1} << megamoe::kGenerationShift) - before_wrap) /
                    static_cast<uint64_t>(shape.moe_layers)),
        banks_(random_, shape),
        domain_(make_domain(shape, kGeneration)) {
    Pool pool(1);
    for (size_t i = 0; i < kInputs; ++i) {
      Lane lane = random_lane(random_, shape);
      std::vector<float> expected(lane.x.size());
      const auto rows = static_cast<size_t>(lane.tokens);
      for (int layer = 0; layer < shape.moe_layers; ++layer) {
        const size_t at = static_cast<size_t>(layer) * rows;
        banks_.all->forward(pool, layer,
                            {x_of(lane, at), shape.hidden, ids_of(lane, at), weights_of(lane, at),
                             expected.data() + at * static_cast<size_t>(shape.hidden), shape.hidden,
                             lane.tokens, shape.top_k});
      }
      inputs_.push_back({std::move(lane), std::move(expected)});
    }
  }

  // Where a word starts and ends.
  uint64_t first_number() const { return domain_->memory().sequence(first_step_, 0); }
  uint64_t last_number() const {
    return domain_->memory().sequence(first_step_ + steps_ - 1, shape_.moe_layers - 1);
  }

  void run() {
    std::vector<std::string> ends(static_cast<size_t>(shape_.attention_ranks + shape_.ffn_ranks));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      threads.emplace_back([this, &ends, rank] {
        const int index = static_cast<int>(rank);
        try {
          if (index < shape_.attention_ranks) attend(index);
          if (index >= shape_.attention_ranks) serve(index - shape_.attention_ranks);
        } catch (const std::exception& error) {
          ends[rank] = error.what();
          domain_->raise_abort(index);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (const std::string& end : ends) all += end.empty() ? "" : end + "\n";
    if (!all.empty()) throw std::runtime_error(all);
  }

 private:
  const float* x_of(const Lane& lane, size_t row) const {
    return lane.x.data() + row * static_cast<size_t>(shape_.hidden);
  }
  const int32_t* ids_of(const Lane& lane, size_t row) const {
    return lane.ids.data() + row * static_cast<size_t>(shape_.top_k);
  }
  const float* weights_of(const Lane& lane, size_t row) const {
    return lane.weights.data() + row * static_cast<size_t>(shape_.top_k);
  }

  const Input& input(uint64_t step, int rank, int lane) const {
    return inputs_[(step * 5 + static_cast<uint64_t>(rank * 3 + lane)) % kInputs];
  }

  void attend(int rank) {
    megamoe::AttentionSide<Target> side(domain_->memory(), rank, kDeadline_ns);
    const auto hidden = static_cast<size_t>(shape_.hidden);
    std::vector<float> out(static_cast<size_t>(shape_.max_tokens) * hidden);
    for (uint64_t step = first_step_; step < first_step_ + steps_; ++step) {
      for (int layer = 0; layer <= shape_.moe_layers; ++layer) {
        for (int l = 0; l < shape_.lanes; ++l) {
          const Input& now = input(step, rank, l);
          const auto rows = static_cast<size_t>(now.lane.tokens);
          if (layer > 0) {
            side.combine(l, out.data(), shape_.hidden);
            const float* expected =
                now.expected.data() + static_cast<size_t>(layer - 1) * rows * hidden;
            if (!std::equal(expected, expected + rows * hidden, out.data())) {
              throw std::runtime_error("a combined row differs at step " + std::to_string(step));
            }
          }
          if (layer == shape_.moe_layers) continue;
          const size_t at = static_cast<size_t>(layer) * rows;
          side.dispatch(step, layer, l, x_of(now.lane, at), shape_.hidden, ids_of(now.lane, at),
                        weights_of(now.lane, at), now.lane.tokens);
        }
      }
    }
  }

  void serve(int rank) {
    Pool pool(1);
    const auto& bank = banks_.ranks[static_cast<size_t>(rank)]->bank();
    std::vector<int32_t> ranks;
    for (int a = 0; a < shape_.attention_ranks; ++a) ranks.push_back(a);
    domain_->agree_on_owners(owner_table(shape_));
    megamoe::FfnSide<Target> side(domain_->memory(), rank, owned_index(shape_, rank, bank),
                                  Target::Experts(bank, pool), kDeadline_ns);
    for (uint64_t step = first_step_; step < first_step_ + steps_; ++step) {
      side.serve(step, shape_.lanes, ranks);
    }
  }

  Shape shape_;
  uint64_t steps_;
  uint64_t first_step_;
  Random random_{7};
  Banks banks_;
  std::unique_ptr<Domain> domain_;
  std::vector<Input> inputs_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: megamoe-soak STEPS BEFORE_WRAP\n");
    return 2;
  }
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  Soak soak({2, 1, 1, 1, 8, 2, 3, 1, megamoe::Wire::FP32}, steps,
            std::strtoull(argv[2], nullptr, 10));
  try {
    soak.run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("%" PRIu64 " steps agree, numbers from %" PRIu64 " to %" PRIu64 "\n", steps,
              soak.first_number(), soak.last_number());
  return 0;
}
