// megamoe-bench-ffn: one FFN rank's layer, weights cold, as the persistent loop runs it. Figures
// are of one lane; with several, each takes its share of one serve.
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

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : options_(options),
        shape_(options.shape()),
        ceilings_(options.clock),
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
      read_.push_back(ceilings_.read_gbps() * options_.threads);
      peak_.push_back(ceilings_.peak_gflops(options_.weights != WeightType::FP32) *
                      options_.threads);
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

  // Every tile times one of the layer's matrices and nothing else, on one thread; the share of the
  // threads that serve has.
  double gemm(const megamoe::cpu::PackedMatrix& weight) {
    using megamoe::cpu::PackedMatrix;
    constexpr int kChunk = 16;  // panels, as the bank takes them
    constexpr int kRows = megamoe::cpu::TileSchedule::kTileRows;
    const int panels = weight.panels() / bank_.owned();
    const size_t stride = PackedMatrix::pair_words(weight.cols());
    std::vector<float> columns(static_cast<size_t>(kRows) * kChunk * PackedMatrix::kPanel);
    std::vector<uint32_t> pairs(kRows * stride);
    const uint32_t* rounded[kRows];
    float* y[kRows];
    const uint64_t start = options_.clock.now_ns();
    for (const megamoe::Tile& tile : schedule_.tiles()) {
      const int base = tile.expert * panels;
      for (int begin = 0; begin < panels; begin += kChunk) {
        const int end = std::min(panels, begin + kChunk);
        for (int r = 0; r < tile.rows; ++r) {
          rounded[r] = pairs.data() + static_cast<size_t>(r) * stride;
          y[r] = columns.data() + static_cast<int64_t>(r) * kChunk * PackedMatrix::kPanel -
                 int64_t{base + begin} * PackedMatrix::kPanel;
        }
        const std::byte* next = base + end < weight.panels() ? weight.panel(base + end) : nullptr;
        if (weight.takes_pairs()) {
          megamoe::cpu::gemm_pairs(rounded, y, tile.rows, weight, base + begin, base + end, next);
        } else {
          megamoe::cpu::gemm_rows(narrow_rows(weight.cols()), y, tile.rows, weight, base + begin,
                                  base + end, false, next);
        }
      }
    }
    return static_cast<double>(options_.clock.now_ns() - start) * 1e-3 / options_.threads;
  }

  const float* const* narrow_rows(int cols) {
    zeros_.assign(static_cast<size_t>(cols), 0.0f);
    zero_rows_.assign(megamoe::cpu::TileSchedule::kTileRows, zeros_.data());
    return zero_rows_.data();
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
        {"swiglu_and_rounding", std::max(0.0, compute - gate_up - down), 0, 0},
        {"pull_and_write_back", std::max(0.0, serve - compute), rows, 0}};
    bench::report(kName, options_, {"serve", serve, weights + rows, flops},
                  {bench::median(read_), bench::median(peak_), "read"}, phases,
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
  std::vector<float> zeros_;
  std::vector<const float*> zero_rows_;
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
