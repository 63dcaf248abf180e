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
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"
#include "tests/megamoe/planted.h"
#include "tests/megamoe/stress_world.h"

namespace {

using namespace stress;
using megamoe::cpu::Pool;

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

  void collect(megamoe::AttentionSide<AttentionTarget>& side, int layer, int l, const Lane& lane) {
    const auto hidden = static_cast<size_t>(shape_.hidden);
    std::vector<float> out(static_cast<size_t>(lane.tokens) * hidden, 1e30f);
    side.combine(l, out.data(), shape_.hidden);
    if (out != expected(layer, lane)) throw std::runtime_error("a combined row differs");
  }

  // The colocated path's sum over slots, of rows as the wire hands them over.
  std::vector<float> expected(int layer, const Lane& lane) {
    const auto hidden = static_cast<size_t>(shape_.hidden);
    const auto top_k = static_cast<size_t>(shape_.top_k);
    const auto tokens = static_cast<size_t>(lane.tokens);
    const std::vector<float> x = as_published(lane.x.data() + row(layer, lane) * hidden, tokens);
    std::vector<float> sum(tokens * hidden);
    std::vector<float> returned(tokens * hidden);
    std::vector<int32_t> ids(tokens);
    std::vector<float> weights(tokens);
    const std::lock_guard<std::mutex> lock(reference_);
    for (size_t slot = 0; slot < top_k; ++slot) {
      for (size_t token = 0; token < tokens; ++token) {
        ids[token] = lane.ids[(row(layer, lane) + token) * top_k + slot];
        weights[token] = lane.weights[(row(layer, lane) + token) * top_k + slot];
      }
      banks_.all->forward(pool_, layer,
                          {x.data(), shape_.hidden, ids.data(), weights.data(), returned.data(),
                           shape_.hidden, lane.tokens, 1});
      for (size_t i = 0; i < sum.size(); ++i) {
        const bool whole = shape_.wire == megamoe::Wire::FP32;
        sum[i] += whole ? returned[i] : megamoe::bf16_decode(megamoe::bf16_encode(returned[i]));
      }
    }
    return sum;
  }

  std::vector<float> as_published(const float* x, size_t tokens) const {
    const auto hidden = static_cast<size_t>(shape_.hidden);
    std::vector<std::byte> row(hidden * sizeof(float));
    std::vector<std::byte> scales(hidden * sizeof(float));
    std::vector<float> read(tokens * hidden);
    for (size_t token = 0; token < tokens; ++token) {
      float* room = read.data() + token * hidden;
      FfnTarget::encode_row(shape_, x + token * hidden, row.data(), scales.data());
      const float* values = FfnTarget::decode_row(shape_, {row.data(), scales.data()}, room);
      if (values != room) std::copy_n(values, hidden, room);
    }
    return read;
  }

  void serve(int rank, const std::vector<Step>& steps, Random& random) {
    Pool pool(1 + rank % 2);
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
  Shape shape = random_shape(random);
  shape.wire = static_cast<megamoe::Wire>(below(random, 3));
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
