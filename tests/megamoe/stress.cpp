// The protocol under stress: every rank a thread over one mapping, random sizes and delays, several
// steps back to back; then an abort at a random moment. Meant for the thread sanitizer, which sees
// the ranks' accesses because they share addresses.
//
//   megamoe-stress SEED ROUNDS
//
// Prints one line and exits 0, or says what differed and exits 1.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"
#include "tests/megamoe/planted.h"
#include "tests/megamoe/stress_reference.h"
#include "tests/megamoe/stress_world.h"

namespace {

using namespace stress;
using megamoe::cpu::Pool;

struct Case {
  Shape shape;
  WeightType weights;
  int threads;  // an FFN rank's pool has this many, or one more
  bool large;
};

class World {
 public:
  World(Random& random, const Case& drawn)
      : shape_(drawn.shape),
        threads_(drawn.threads),
        banks_(random, drawn.shape, drawn.weights),
        reference_(drawn.shape, *banks_.all),
        domain_(make_domain(drawn.shape)) {}

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
  size_t row(int layer, const Lane& lane) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(lane.tokens);
  }

  void attend(int rank, const std::vector<Step>& steps, Random& random) {
    megamoe::AttentionSide<AttentionTarget> side(domain_->memory(), rank, kDeadline_ns);
    const auto hidden = static_cast<size_t>(shape_.hidden);
    const auto top_k = static_cast<size_t>(shape_.top_k);
    for (size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      if (std::find(step.ranks.begin(), step.ranks.end(), rank) == step.ranks.end()) continue;
      for (int layer = 0; layer <= shape_.moe_layers; ++layer) {
        for (int l = 0; l < step.lanes; ++l) {
          const Lane& lane = step.work[static_cast<size_t>(rank)][static_cast<size_t>(l)];
          delay(random);
          if (layer > 0) collect(side, rank, layer - 1, l, lane);
          if (layer == shape_.moe_layers) continue;
          delay(random);
          side.dispatch(s, layer, l, lane.x.data() + row(layer, lane) * hidden, shape_.hidden,
                        lane.ids.data() + row(layer, lane) * top_k,
                        lane.weights.data() + row(layer, lane) * top_k, lane.tokens);
        }
      }
    }
  }

  void collect(megamoe::AttentionSide<AttentionTarget>& side, int rank, int layer, int l,
               const Lane& lane) {
    const auto elements = static_cast<size_t>(lane.tokens) * static_cast<size_t>(shape_.hidden);
    std::vector<float> out(elements, 1e30f);
    side.combine(l, out.data(), shape_.hidden);
    if (out != reference_.expected(rank, layer, lane)) {
      throw std::runtime_error("a combined row differs");
    }
  }

  void serve(int rank, const std::vector<Step>& steps, Random& random) {
    Pool pool(threads_ + rank % 2);
    const auto& bank = banks_.ranks[static_cast<size_t>(rank)]->bank();
    domain_->agree_on_owners(owner_table(shape_));
    megamoe::FfnSide<FfnTarget> side(domain_->memory(), rank, owned_index(shape_, rank, bank),
                                     FfnTarget::Experts(bank, pool), kDeadline_ns);
    for (size_t s = 0; s < steps.size(); ++s) {
      delay(random);
      side.serve(s, steps[s].lanes, steps[s].ranks);
    }
  }

  Shape shape_;
  int threads_;
  Banks banks_;
  Reference reference_;
  std::unique_ptr<Domain> domain_;
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

// Now and then so many elements that an FFN rank's pool shares every part of its work, and so many
// rows that they take several waves.
Case random_case(Random& random) {
  Case drawn{random_shape(random), static_cast<WeightType>(below(random, 3)), 1 + below(random, 3),
             below(random, 4) == 0};
  Shape& shape = drawn.shape;
  shape.wire = static_cast<megamoe::Wire>(below(random, 3));
  shape.scale_format = static_cast<megamoe::ScaleFormat>(below(random, 3));
  shape.return_mode = static_cast<megamoe::ReturnMode>(below(random, 2));
  if (drawn.large) {
    drawn.threads = 2;
    shape.lanes = 1;
    shape.moe_layers = 1 + below(random, 2);
    shape.max_tokens = 150 + below(random, 150);
    shape.hidden = 400 + below(random, 200);
  }
  return drawn;
}

bool run_round(uint64_t seed, const Case& drawn, Random& random) {
  std::vector<Step> steps;
  for (int i = 0; i < (drawn.large ? 3 : 8); ++i) steps.push_back(random_step(random, drawn.shape));
  World whole(random, drawn);
  if (!check(whole.run(steps, seed), false, seed)) return false;
  World aborted(random, drawn);
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
  uint64_t large = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Random random(seed + round);
    const Case drawn = random_case(random);
    if (!run_round(seed + round, drawn, random)) return 1;
    large += drawn.large;
  }
  std::printf("%llu rounds agree, %llu of them large\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(large));
  return 0;
}
