// megamoe-bench-dispatch and megamoe-bench-combine: one attention rank's two halves by themselves.
//
// The rows come from, and go to, more memory than the caches hold: as many attention ranks as that
// takes are gone through in turn.
#include <cstdio>
#include <cstring>
#include <exception>

#include "ceilings.h"
#include "launch.h"
#include "megamoe/attention_side.h"
#include "report.h"

namespace {

constexpr size_t kColdBytes = size_t{96} << 20;

#if defined(MEGAMOE_BENCH_COMBINE)
constexpr const char* kName = "megamoe-bench-combine";
constexpr bool kCombine = true;
#else
constexpr const char* kName = "megamoe-bench-dispatch";
constexpr bool kCombine = false;
#endif

// What one call moves: dispatch reads float32 rows and writes IN; combine reads OUT, writes
// float32.
double bytes_moved(const bench::Options& options, const megamoe::Layout& layout,
                   const bench::Tokens& tokens) {
  const double rows = options.tokens;
  const double plain = rows * options.hidden * 4.0;
  if (!kCombine) {
    const double routes = rows * options.top_k * 8.0 * 2;
    return plain + rows * static_cast<double>(layout.row_bytes() + layout.row_scale_bytes()) +
           routes;
  }
  double returned = 0;
  for (int token = 0; token < options.tokens; ++token) {
    const int32_t* ids = tokens.ids.data() + static_cast<int64_t>(token) * options.top_k;
    for (int slot = 0; slot < options.top_k; ++slot) {
      bool first = true;
      for (int before = 0; before < slot; ++before) {
        first = first && ids[before] % options.ffn_ranks != ids[slot] % options.ffn_ranks;
      }
      returned += options.return_mode == megamoe::ReturnMode::Slot || first;
    }
  }
  return plain + returned * static_cast<double>(layout.out_row_bytes());
}

void run(bench::Options options) {
  const megamoe::Layout one = megamoe::make_layout(options.shape());
  const size_t ranks = kColdBytes / one.segment_bytes + 2;
  options.attention_ranks = static_cast<int>(ranks);
  options.lanes = 1;
  const megamoe::Shape shape = options.shape();
  const auto domain = bench::make_domain(shape);
  const megamoe::Memory& memory = domain->memory();
  const bench::Tokens tokens(shape, options.tokens, 1);
  std::vector<std::vector<float>> rows(ranks, tokens.x);
  std::vector<megamoe::AttentionSide<bench::Target>> sides;
  for (size_t a = 0; a < ranks; ++a) {
    sides.emplace_back(memory, static_cast<int>(a), bench::kDeadlineNs);
    std::memset(memory.out(static_cast<int>(a), 0, 0, 0), 0, one.out.bytes);
  }
  bench::Ceilings ceilings(options.clock);
  std::vector<double> us;
  std::vector<double> copy;
  std::vector<double> peak;
  for (int round = 0; round <= options.rounds; ++round) {
    double dispatch_ns = 0;
    double combine_ns = 0;
    const auto step = static_cast<uint64_t>(round);
    for (size_t a = 0; a < ranks; ++a) {
      const uint64_t start = options.clock.now_ns();
      sides[a].dispatch(step, 0, 0, rows[a].data(), shape.hidden, tokens.ids.data(),
                        tokens.weights.data(), options.tokens);
      dispatch_ns += static_cast<double>(options.clock.now_ns() - start);
      bench::say_done(memory, static_cast<int>(a), step, 0);
    }
    for (size_t a = 0; a < ranks; ++a) {
      const uint64_t start = options.clock.now_ns();
      sides[a].combine(0, rows[a].data(), shape.hidden);
      combine_ns += static_cast<double>(options.clock.now_ns() - start);
    }
    if (round == 0) continue;  // touches the memory
    us.push_back((kCombine ? combine_ns : dispatch_ns) * 1e-3 / static_cast<double>(ranks));
    copy.push_back(ceilings.copy_gbps());
    peak.push_back(ceilings.peak_gflops(false));
  }
  options.attention_ranks = 1;
  const bench::Phase whole{kCombine ? "combine" : "dispatch", bench::median(us),
                           bytes_moved(options, one, tokens), 0};
  bench::report(kName, options, whole, {bench::median(copy), bench::median(peak), "copy"}, {});
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(
      argc, argv, kName, kCombine ? "sums returned rows" : "quantises and publishes rows",
      {"--attention-ranks", "--lanes", "--threads", "--weights"});
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", kName, error.what());
    return 1;
  }
  return 0;
}
