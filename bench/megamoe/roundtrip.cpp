// megamoe-bench-roundtrip: dispatch → serve → combine between two processes without compute, next
// to a cache line that the same two processes bounce in the same run.
//
// Tokens are published and scanned, but every slot is unused: no expert runs. Both figures are
// medians over single trips, so that a moment in which one process had no core does not count.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>

#include "ceilings.h"
#include "launch.h"
#include "megamoe/attention_side.h"
#include "megamoe/ffn_side.h"
#include "report.h"

namespace {

using bench::Target;

constexpr const char* kName = "megamoe-bench-roundtrip";
constexpr int kTrips = 2000;  // a round: one step of so many layers
constexpr int kBounces = 20'000;

// In memory that both processes share.
struct Shared {
  alignas(128) std::atomic<int64_t> ball;
};

void pin(int core) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int c = 0, seen = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &allowed) && seen++ == core) CPU_SET(c, &one);
  }
  if (CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof(one), &one);
}

void wait_for(const Shared& shared, int64_t ball) {
  // With fewer cores than processes the partner needs this one.
  constexpr int kSpins = 100'000;
  for (int spins = 0; shared.ball.load(std::memory_order_acquire) != ball; ++spins) {
    if (spins > kSpins) sched_yield();
  }
}

// The child: both parts of every round, as FFN rank 0.
void partner(Shared& shared, const megamoe::Memory& memory, const bench::Options& options) {
  pin(1);
  const megamoe::cpu::ExpertBank bank(1, {0}, options.hidden, 16, megamoe::cpu::WeightType::BF16);
  megamoe::cpu::Pool pool(1);
  std::vector<int32_t> index(static_cast<size_t>(options.experts), -1);
  index[0] = 0;
  megamoe::FfnSide<Target> side(memory, 0, index, Target::Experts(bank, pool), bench::kDeadlineNs);
  for (int round = 0; round <= options.rounds; ++round) {
    const int64_t first = int64_t{2} * kBounces * round;
    for (int64_t ball = first + 1; ball < first + int64_t{2} * kBounces; ball += 2) {
      wait_for(shared, ball);
      shared.ball.store(ball + 1, std::memory_order_release);
    }
    side.serve(static_cast<uint64_t>(round), 1, {0});
  }
}

void run(bench::Options options) {
  options.clock = {};  // a round trip is a wait
  options.attention_ranks = options.ffn_ranks = options.lanes = 1;
  megamoe::Shape shape = options.shape();
  shape.moe_layers = kTrips;
  const auto domain = bench::make_domain(shape);
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) throw std::runtime_error("no shared page");
  new (shared) Shared{};
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    partner(*shared, domain->memory(), options);
    _exit(0);
  }
  pin(0);
  bench::Tokens tokens(shape, options.tokens, 1);
  std::fill(tokens.ids.begin(), tokens.ids.end(), -1);
  std::vector<float> out(tokens.x.size() + 1);
  megamoe::AttentionSide<Target> side(domain->memory(), 0, bench::kDeadlineNs);
  std::vector<double> trip_us;
  std::vector<double> bounce_us;
  const auto elapsed_us = [&](uint64_t start) {
    return static_cast<double>(options.clock.now_ns() - start) * 1e-3;
  };
  for (int round = 0; round <= options.rounds; ++round) {
    const int64_t first = int64_t{2} * kBounces * round;
    for (int64_t ball = first; ball < first + int64_t{2} * kBounces; ball += 2) {
      const uint64_t start = options.clock.now_ns();
      shared->ball.store(ball + 1, std::memory_order_release);
      wait_for(*shared, ball + 2);
      if (round > 0) bounce_us.push_back(elapsed_us(start));
    }
    for (int layer = 0; layer < kTrips; ++layer) {
      const uint64_t start = options.clock.now_ns();
      side.dispatch(static_cast<uint64_t>(round), layer, 0, tokens.x.data(), shape.hidden,
                    tokens.ids.data(), tokens.weights.data(), options.tokens);
      side.combine(0, out.data(), shape.hidden);
      if (round > 0) trip_us.push_back(elapsed_us(start));
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("the partner process failed");
  }
  const double pingpong = bench::median(bounce_us);
  const double trip = bench::median(trip_us);
  // The least it could cost is the cache line's way there and back.
  const double bytes = static_cast<double>(tokens.x.size()) * 4;
  bench::Ceilings ceilings(options.clock);
  bench::report(kName, options, {"roundtrip", trip, bytes, 0, pingpong},
                {ceilings.copy_gbps(), ceilings.peak_gflops(false), "copy"}, {},
                {{"pingpong_us", pingpong}, {"ratio", trip / pingpong}});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options defaults;
  defaults.tokens = 0;
  const bench::Options options = bench::parse(
      argc, argv, kName, "a round trip between two processes against a bounced cache line",
      {"--attention-ranks", "--ffn-ranks", "--lanes", "--threads", "--weights", "--clock"},
      defaults);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", kName, error.what());
    return 1;
  }
  return 0;
}
