// megamoe-bench-ffn: one FFN rank's layer, weights cold, as the persistent loop runs it. Figures
// are of one lane; with several, each takes its share of one serve.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>

#include "ceilings.h"
#include "launch.h"
#include "megamoe/attention_side.h"
#include "megamoe/cpu/expert_bank.h"
#include "megamoe/cpu/rows_in_place.h"
#include "megamoe/ffn_side.h"
#include "report.h"

namespace {

using bench::Target;
using megamoe::cpu::ExpertBank;
using megamoe::cpu::PackedMatrix;
using megamoe::cpu::WeightType;

constexpr const char* kName = "megamoe-bench-ffn";

// Any weights: what they are does not change the time.
void fill(ExpertBank& bank, WeightType type) {
  const auto elements = static_cast<size_t>(bank.hidden()) * static_cast<size_t>(bank.width());
  std::mt19937_64 random(7);
  if (type == WeightType::FP8) {
    std::vector<uint8_t> codes(elements);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & 0xb7);  // finite
    const size_t blocks = (elements >> 14) + static_cast<size_t>(bank.hidden() + bank.width()) + 1;
    const std::vector<float> scales(blocks, 1e-3f);
    const megamoe::cpu::Fp8Weight weight{codes.data(), scales.data(), 128, 128};
    for (const int32_t e : bank.expert_ids()) bank.load_fp8(0, e, weight, weight, weight);
    return;
  }
  std::vector<float> values(elements);
  const float size = 2.0f / std::sqrt(static_cast<float>(bank.hidden()));
  for (float& value : values) value = (static_cast<float>(random() >> 40) * 0x1p-24f - 0.5f) * size;
  for (const int32_t e : bank.expert_ids()) {
    bank.load(0, e, values.data(), values.data(), values.data());
  }
}

constexpr int kRows = megamoe::cpu::TileSchedule::kTileRows;
constexpr int kChunk = 16;  // panels, as the bank takes them
constexpr size_t kColumns = size_t{kRows} * kChunk * PackedMatrix::kPanel;

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : options_(options),
        shape_(options.shape()),
        ceilings_(options.clock, options.threads),
        domain_(bench::make_domain(shape_)),
        bank_(1, owned(options), options.hidden, options.width, options.weights),
        pool_(options.threads),
        ffn_(domain_->memory(), 0, index(), Target::Experts(bank_, pool_), bench::kDeadlineNs) {
    fill(bank_, options.weights);
    for (int a = 0; a < options.attention_ranks; ++a) {
      sides_.emplace_back(domain_->memory(), a, bench::kDeadlineNs);
      tokens_.emplace_back(shape_, options.tokens, static_cast<uint64_t>(a));
      ranks_.push_back(a);
    }
    plan();
  }

  void run() {
    for (int round = 0; round <= options_.rounds; ++round) {
      const double serve_us = serve(static_cast<uint64_t>(round));
      const double gate_up_us = gemm(bank_.gate_up(0));
      const double down_us = gemm(bank_.down(0));
      const double compute_us = compute();
      if (round == 0) continue;  // touches the memory
      serve_.push_back(serve_us);
      gate_up_.push_back(gate_up_us);
      down_.push_back(down_us);
      compute_.push_back(compute_us);
      read_.push_back(ceilings_.read_gbps());
      peak_.push_back(ceilings_.peak_gflops(options_.weights != WeightType::FP32));
    }
    print();
  }

 private:
  static std::vector<int32_t> owned(const bench::Options& options) {
    std::vector<int32_t> ids;
    for (int e = 0; e < options.experts; e += options.ffn_ranks) ids.push_back(e);
    return ids;
  }

  std::vector<int32_t> index() const {
    const std::vector<int32_t> held = bank_.owned_index(shape_.experts);
    std::vector<int32_t> all;
    for (int a = 0; a < shape_.attention_ranks; ++a)
      all.insert(all.end(), held.begin(), held.end());
    return all;
  }

  // The schedule that serve will build, to time its parts.
  void plan() {
    const std::vector<int32_t> held = bank_.owned_index(shape_.experts);
    std::vector<megamoe::Routes> sources;
    for (const bench::Tokens& tokens : tokens_) {
      sources.push_back({tokens.ids.data(), options_.tokens, held.data()});
    }
    schedule_.build(sources, shape_.top_k, shape_.experts, bank_.owned());
    for (const megamoe::PulledRow& row : schedule_.rows()) {
      rows_.push_back(tokens_[static_cast<size_t>(row.source)].x.data() +
                      static_cast<int64_t>(row.token) * options_.hidden);
    }
    int last = -1;
    for (const megamoe::Tile& tile : schedule_.tiles()) {
      visited_ += tile.expert != last;
      last = tile.expert;
    }
  }

  double serve(uint64_t step) {
    for (int lane = 0; lane < options_.lanes; ++lane) {
      for (size_t a = 0; a < sides_.size(); ++a) {
        sides_[a].dispatch(step, 0, lane, tokens_[a].x.data(), options_.hidden,
                           tokens_[a].ids.data(), tokens_[a].weights.data(), options_.tokens);
      }
    }
    const uint64_t start = options_.clock.now_ns();
    ffn_.serve(step, options_.lanes, ranks_);
    const double us = static_cast<double>(options_.clock.now_ns() - start) * 1e-3 / options_.lanes;
    std::vector<float> out(static_cast<size_t>(options_.tokens) *
                           static_cast<size_t>(options_.hidden));
    for (int lane = 0; lane < options_.lanes; ++lane) {
      for (size_t a = 0; a < sides_.size(); ++a) {
        bench::say_done(domain_->memory(), static_cast<int>(a), step, 1, lane);
        sides_[a].combine(lane, out.data(), options_.hidden);
      }
    }
    return us;
  }

  // Every tile times one of the layer's matrices and nothing else, on the threads that serve has.
  double gemm(const PackedMatrix& weight) {
    columns_.resize(static_cast<size_t>(options_.threads) * kColumns);
    zeros_.assign(kRows * row_words(weight), 0.0f);
    zero_pairs_.assign(kRows * row_words(weight), 0);
    const int chunks = (weight.panels() / bank_.owned() + kChunk - 1) / kChunk;
    const int tasks = static_cast<int>(schedule_.tiles().size()) * chunks;
    std::atomic<int> next{0};
    const uint64_t start = options_.clock.now_ns();
    pool_.parallel_for(options_.threads, [&](int thread) {
      float* columns = columns_.data() + static_cast<size_t>(thread) * kColumns;
      for (int task; (task = next.fetch_add(1)) < tasks;) {
        multiply(weight, schedule_.tiles()[static_cast<size_t>(task / chunks)], task % chunks,
                 columns);
      }
    });
    return static_cast<double>(options_.clock.now_ns() - start) * 1e-3;
  }

  // From one row of activations to the next, each of its own as in serve.
  static size_t row_words(const PackedMatrix& weight) {
    return PackedMatrix::pair_words(weight.takes_pairs() ? weight.cols() : 2 * weight.cols());
  }

  // A tile times one chunk of its expert's panels.
  void multiply(const PackedMatrix& weight, const megamoe::Tile& tile, int chunk,
                float* columns) const {
    const int panels = weight.panels() / bank_.owned();
    const int begin = tile.expert * panels + chunk * kChunk;
    const int end = std::min(begin + kChunk, (tile.expert + 1) * panels);
    const std::byte* next = end < weight.panels() ? weight.panel(end) : nullptr;
    const size_t stride = row_words(weight);
    const uint32_t* rounded[kRows];
    const float* rows[kRows];
    float* y[kRows];
    for (int r = 0; r < tile.rows; ++r) {
      rounded[r] = zero_pairs_.data() + static_cast<size_t>(r) * stride;
      rows[r] = zeros_.data() + static_cast<size_t>(r) * stride;
      y[r] = columns + (int64_t{r} * kChunk - begin) * PackedMatrix::kPanel;
    }
    if (weight.takes_pairs()) {
      megamoe::cpu::gemm_pairs(rounded, y, tile.rows, weight, begin, end, next);
    } else {
      megamoe::cpu::gemm_rows(rows, y, tile.rows, weight, begin, end, false, next);
    }
  }

  double compute() {
    const megamoe::cpu::RowsInPlace rows(
        options_.hidden, [this](int32_t i) { return rows_[static_cast<size_t>(i)]; });
    const uint64_t start = options_.clock.now_ns();
    bank_.compute(pool_, 0, 0, schedule_, rows, scratch_, [](int, const float*, int, int) {});
    return static_cast<double>(options_.clock.now_ns() - start) * 1e-3;
  }

  void print() const {
    const double weights = static_cast<double>(bank_.bytes()) / bank_.owned() * visited_;
    const double copies = static_cast<double>(schedule_.copies().size());
    const double flops = copies * 6.0 * options_.hidden * options_.width;
    const megamoe::Layout& layout = domain_->memory().layout;
    const double rows = static_cast<double>(schedule_.rows().size()) *
                            static_cast<double>(layout.row_bytes() + layout.row_scale_bytes()) +
                        copies * static_cast<double>(layout.out_row_bytes());
    const double serve = bench::median(serve_);
    const double compute = bench::median(compute_);
    const double gate_up = bench::median(gate_up_);
    const double down = bench::median(down_);
    const std::vector<bench::Phase> phases{
        {"gate_up", gate_up, weights * 2 / 3, flops * 2 / 3},
        {"down", down, weights / 3, flops / 3},
        {"swiglu_and_rounding", compute - gate_up - down, 0, 0, 0, true},
        {"pull_and_write_back", serve - compute, 0, 0, 0, true}};
    bench::report(kName, options_, {"serve", serve, weights + rows, flops},
                  {bench::median(read_), bench::median(peak_), "read", ceilings_.threads()}, phases,
                  {{"experts_visited", visited_}, {"copies", copies}});
  }

  bench::Options options_;
  megamoe::Shape shape_;
  bench::Ceilings ceilings_;
  std::unique_ptr<megamoe::cpu::Domain> domain_;
  ExpertBank bank_;
  megamoe::cpu::Pool pool_;
  megamoe::FfnSide<Target> ffn_;
  std::vector<megamoe::AttentionSide<Target>> sides_;
  std::vector<bench::Tokens> tokens_;
  std::vector<int32_t> ranks_;
  megamoe::cpu::TileSchedule schedule_;
  std::vector<const float*> rows_;
  std::vector<float> columns_;  // [threads][kColumns]
  std::vector<float> zeros_;    // [kRows][row_words]
  std::vector<uint32_t> zero_pairs_;
  megamoe::cpu::ExpertScratch scratch_;
  std::vector<double> serve_, gate_up_, down_, compute_, read_, peak_;
  int visited_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options =
      bench::parse(argc, argv, kName, "one FFN rank's layer with cold weights", {});
  try {
    Bench(options).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", kName, error.what());
    return 1;
  }
  return 0;
}
