// The AMX level against its definition.
//
//   megamoe-amx SEED ROUNDS             its instructions in software
//   megamoe-amx SEED ROUNDS trapped     the product's instructions, emulated one by one
//   megamoe-amx-hardware SEED ROUNDS    the processor's; exits 77 where there are none
//
// Prints one line and exits 0, or says what differed and exits 1.
#include "megamoe/cpu/amx.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "megamoe/cpu/amx_cpuid.h"
#include "megamoe/cpu/colocated.h"
#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"
#include "tests/megamoe/amx_reference.h"

MEGAMOE_TARGET(MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/amx_tiles.h"
// The emulation needs the tiles' configuration.
#include "megamoe/cpu/amx_emulated.h"
MEGAMOE_TARGET_END

#include "tests/megamoe/amx_trap.h"

namespace {

using namespace megamoe::cpu;
using amx_reference::Weight;
using Random = std::mt19937_64;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = 12345.0f;
constexpr int kSkipped = 77;

int below(Random& random, int end) {
  return static_cast<int>(random() % static_cast<uint64_t>(end));
}
size_t index(int i) { return static_cast<size_t>(i); }

[[noreturn]] void fail(const std::string& sentence) { throw std::runtime_error(sentence); }

void require(bool good, const std::string& sentence) {
  if (!good) fail(sentence);
}

// A weight and the same packed.
struct Packed {
  Weight weight;
  PackedMatrix matrix;

  Packed(Random& random, int rows, int cols, WeightType type)
      : weight{rows, cols, {}, {}}, matrix(rows, cols, type) {
    type == WeightType::FP8 ? fill_fp8(random) : fill_bf16(random);
  }

 private:
  void fill_bf16(Random& random) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> words;
    // What is no number stays in its own column, though another panel may lie before it.
    const bool poisoned = below(random, 4) == 0;
    const size_t row = index(below(random, weight.rows));
    for (size_t i = 0; i < index(weight.rows) * index(weight.cols); ++i) {
      const bool here = poisoned && i / index(weight.cols) == row;
      words.push_back(f32_to_bf16(here ? kPoison : normal(random)));
      weight.values.push_back(bf16_to_f32(words.back()));
    }
    matrix.load_bf16(0, words.data(), weight.rows);
  }

  // Every finite code.
  void fill_fp8(Random& random) {
    std::vector<uint8_t> codes;
    for (size_t i = 0; i < index(weight.rows) * index(weight.cols); ++i) {
      uint8_t code = static_cast<uint8_t>(random());
      if ((code & 0x7f) == 0x7f) code = 0x38;
      codes.push_back(code);
      weight.values.push_back(megamoe::e4m3_decode(code));
    }
    const size_t blocks = index((weight.cols + 127) / 128);
    std::uniform_real_distribution<float> scale(0.001f, 0.1f);
    for (int first = 0; first < weight.rows; first += PackedMatrix::kScaleRows) {
      for (size_t b = 0; b < blocks; ++b) weight.scales.push_back(scale(random));
      matrix.load_fp8(first, codes.data() + index(first) * index(weight.cols),
                      std::min(weight.rows - first, PackedMatrix::kScaleRows),
                      &*(weight.scales.end() - static_cast<std::ptrdiff_t>(blocks)));
    }
  }
};

// Rows of activations in memory that is otherwise poisoned.
struct Activations {
  int m;
  int cols;
  std::vector<float> values;
  std::vector<uint32_t> pairs;
  std::vector<const float*> x;
  std::vector<const uint32_t*> x_pairs;

  Activations(Random& random, int m, const PackedMatrix& matrix, bool scattered)
      : m(m), cols(matrix.cols()) {
    const size_t width = index(cols) + 1 + index(below(random, 9));
    const size_t words = PackedMatrix::pair_words(cols);
    // Twice as many places as rows, in use every one or every one or two.
    values.assign(width * index(2 * m), kPoison);
    pairs.assign(words * index(2 * m), 0x7fc07fc0u);
    std::normal_distribution<float> normal;
    size_t place = 0;
    for (int i = 0; i < m; ++i, place += scattered ? 1 + index(below(random, 2)) : 1) {
      // Now and then products, sums or the activations themselves are subnormal.
      const float size = below(random, 4) > 0 ? 1.0f : below(random, 2) ? 1e-37f : 1e-39f;
      float* row = values.data() + place * width;
      for (int k = 0; k < cols; ++k) row[k] = size * normal(random);
      x.push_back(row);
      matrix.round(row, cols, pairs.data() + place * words);
      x_pairs.push_back(pairs.data() + place * words);
    }
    if (scattered) shuffle(random);
  }

 private:
  void shuffle(Random& random) {
    for (int i = m - 1; i > 0; --i) {
      const size_t j = index(below(random, i + 1));
      std::swap(x[index(i)], x[j]);
      std::swap(x_pairs[index(i)], x_pairs[j]);
    }
  }
};

struct Product {
  std::vector<float> values;  // [m][stride]
  size_t stride;
  std::vector<float*> y;

  Product(int m, int rows) : stride(index(rows) + 5) {
    values.assign(index(m) * stride, kUntouched);
    for (int i = 0; i < m; ++i) y.push_back(values.data() + index(i) * stride);
  }
};

struct Range {
  int begin;
  int end;
  bool accumulate;
};

std::string describe(const Packed& w, int m, const Range& range) {
  return (w.weight.scales.empty() ? "bf16 [" : "fp8 [") + std::to_string(w.weight.rows) + ", " +
         std::to_string(w.weight.cols) + "], " + std::to_string(m) + " rows, panels [" +
         std::to_string(range.begin) + ", " + std::to_string(range.end) + ")" +
         (range.accumulate ? ", accumulating" : "");
}

void check(const Packed& w, const Activations& a, const Range& range, const Product& product) {
  const int first = range.begin * PackedMatrix::kPanel;
  const int end = std::min(range.end * PackedMatrix::kPanel, w.weight.rows);
  for (int i = 0; i < a.m; ++i) {
    for (int c = 0; c < static_cast<int>(product.stride); ++c) {
      const float seen = product.y[index(i)][c];
      const std::string where =
          describe(w, a.m, range) + ": row " + std::to_string(i) + ", column " + std::to_string(c);
      if (c < first || c >= end) {
        require(seen == kUntouched, where + " was written");
        continue;
      }
      const float* x = a.x[index(i)];
      const float expected = amx_reference::expected(x, w.weight, c, range.accumulate, kUntouched);
      if (std::isnan(seen) && std::isnan(expected)) continue;
      require(std::memcmp(&seen, &expected, sizeof(seen)) == 0,
              where + " is " + std::to_string(seen) + ", not " + std::to_string(expected));
      const auto exact = amx_reference::exact(x, w.weight, c, range.accumulate, kUntouched);
      require(std::fabs(seen - exact.value) <= amx_reference::bound(exact, w.weight.cols),
              where + " is too far from " + std::to_string(exact.value));
    }
  }
}

// Whether a round's rows are so many and so long that the kernels take them in several blocks.
bool several_blocks(Random& random) { return below(random, 20) == 0; }

Packed random_weight(Random& random, bool long_rows) {
  const WeightType type = below(random, 2) ? WeightType::BF16 : WeightType::FP8;
  if (long_rows) return Packed(random, 1 + below(random, 40), 2000 + below(random, 4001), type);
  // Whole steps and panels as well as any size.
  const int cols = below(random, 3) ? 1 + below(random, 300) : 32 * (1 + below(random, 9));
  return Packed(random, 1 + below(random, 100), cols, type);
}

void multiply_and_check(Random& random) {
  const bool several = several_blocks(random);
  const Packed w = random_weight(random, several);
  const int m = several ? 100 + below(random, 101) : 1 + below(random, below(random, 2) ? 100 : 20);
  const Activations a(random, m, w.matrix, below(random, 2) == 0);
  Range range{below(random, w.matrix.panels()), w.matrix.panels(), below(random, 2) == 0};
  if (below(random, 2)) range.end = range.begin + 1;
  Product from_values(m, w.weight.rows);
  gemm_rows(a.x.data(), from_values.y.data(), m, w.matrix, range.begin, range.end,
            range.accumulate);
  check(w, a, range, from_values);
  range.accumulate = false;
  Product from_pairs(m, w.weight.rows);
  gemm_pairs(a.x_pairs.data(), from_pairs.y.data(), m, w.matrix, range.begin, range.end,
             w.matrix.panel(0));
  check(w, a, range, from_pairs);
}

// The product's kernels, whose instructions trap.
void multiply_trapped(Random& random) {
  const bool several = several_blocks(random);
  const Packed w = random_weight(random, several);
  const bool fp8 = !w.weight.scales.empty();
  const int m = several ? 100 + below(random, 101) : 1 + below(random, 70);
  const Activations a(random, m, w.matrix, below(random, 2) == 0);
  const Range range{0, w.matrix.panels(), below(random, 2) == 0};
  Product product(m, w.weight.rows);
  const size_t head = fp8 ? fp8_head_bytes((w.weight.cols + 127) / 128) : 0;
  const GemmKernels kernels = gemm_amx();
  (fp8 ? kernels.fp8_pairs : kernels.bf16_pairs)(
      {a.x.data(), nullptr, product.y.data(), m, w.matrix.panel(0), w.matrix.panel_bytes(),
       w.weight.rows, w.weight.cols, range.begin, range.end, range.accumulate, head, nullptr});
  check(w, a, range, product);
}

// A whole expert: every level's tiles, waves and threads, from any batch the same bits.
void compute_experts(Random& random) {
  const int hidden = 1 + below(random, 130), width = 1 + below(random, 70), tokens = 140;
  constexpr int kExperts = 3, kTopK = 2;
  std::normal_distribution<float> normal(0.0f, 0.1f);
  const auto draw = [&](int rows, int cols) {
    std::vector<float> values(index(rows) * index(cols));
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto gate = draw(kExperts * width, hidden), up = draw(kExperts * width, hidden),
             down = draw(kExperts * hidden, width), x = draw(tokens, hidden),
             weights = draw(tokens, kTopK);
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    ids.push_back(below(random, 8) ? 0 : 1);  // more rows than fit a tile, and few
    ids.push_back(2);
  }
  std::vector<std::vector<float>> results;
  const auto forward = [&](ColocatedExperts& experts, int threads, int first, int count) {
    Pool pool(threads);
    std::vector<float> out(index(count) * index(hidden), kPoison);
    experts.forward(
        pool, 0,
        {x.data() + index(first) * index(hidden), hidden, ids.data() + index(first) * kTopK,
         weights.data() + index(first) * kTopK, out.data(), hidden, count, kTopK});
    return out;
  };
  const auto with_level = [&](Isa isa) {
    set_isa(isa);
    ColocatedExperts experts(1, {0, 1, 2}, hidden, width, WeightType::BF16);
    set_isa(Isa::Amx);
    for (int e = 0; e < kExperts; ++e) {
      experts.bank().load(0, e, gate.data() + index(e * width) * index(hidden),
                          up.data() + index(e * width) * index(hidden),
                          down.data() + index(e * hidden) * index(width));
    }
    const auto whole = forward(experts, 1, 0, tokens);
    require(whole == forward(experts, 3, 0, tokens), "three threads compute other bits than one");
    for (const int token : {0, 77}) {
      const auto alone = forward(experts, 1, token, 1);
      require(std::equal(alone.begin(), alone.end(), whole.begin() + token * hidden),
              "a token alone has other bits than in a batch");
    }
    return whole;
  };
  const auto tiles = with_level(Isa::Amx), pairs = with_level(Isa::Avx512Bf16);
  // The levels round the same, and differ in the order of float32 sums, which may tip an
  // activation's rounding to bf16.
  double size = 0;
  for (const float value : pairs) size = std::max(size, std::fabs(double{value}));
  for (size_t i = 0; i < tiles.size(); ++i) {
    require(std::fabs(tiles[i] - pairs[i]) <= 4e-3 * size, "experts differ from avx512bf16's");
  }
}

template <class Error>
void require_thrown(const std::string& what, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    return;
  }
  fail("was accepted: " + what);
}

// The emulation refuses what the processor would.
void misuse_tiles() {
  alignas(64) static float memory[16][16] = {};
  EmulatedTiles tiles;
  const auto configured = [&](auto&& change) {
    TileConfig config;
    for (int t = 0; t < 8; ++t) config.set(t, 16);
    change(config);
    tiles.configure(config);
  };
  require_thrown<TileFault>("no configuration", [&] { tiles.zero<0>(); });
  require_thrown<TileFault>("palette 2", [&] { configured([](auto& c) { c.palette = 2; }); });
  require_thrown<TileFault>("17 rows", [&] { configured([](auto& c) { c.rows[1] = 17; }); });
  require_thrown<TileFault>("68 bytes", [&] { configured([](auto& c) { c.row_bytes[1] = 68; }); });
  require_thrown<TileFault>("no bytes", [&] { configured([](auto& c) { c.row_bytes[1] = 0; }); });
  require_thrown<TileFault>("a ninth tile", [&] { configured([](auto& c) { c.set(8, 16); }); });
  configured([](auto& c) { c.set(3, 0), c.set(2, 7), c.row_bytes[5] = 32; });
  require_thrown<TileFault>("an empty tile", [&] { tiles.load<3>(memory, 64); });
  require_thrown<TileFault>("unequal rows", [&] { tiles.dot<0, 2, 1>(); });
  require_thrown<TileFault>("unequal columns", [&] { tiles.dot<0, 1, 5>(); });
  require_thrown<TileFault>("unequal depth", [&] { tiles.dot<0, 5, 1>(); });
  require_thrown<TileFault>("a tile twice", [&] { tiles.dot<0, 1, 1>(); });
  tiles.release();
  require_thrown<TileFault>("released tiles", [&] { tiles.store<0>(memory, 64); });
}

void check_machine(bool trapped) {
  const bool emulated = std::string(isa_name(Isa::Amx)) == "amx-emulated";
  check_amx(emulated && !trapped ? gemm_amx_emulated() : gemm_amx());
  // Another order of the sum is none of the check's business.
  check_amx(gemm_avx512bf16());
  GemmKernels wrong = gemm_avx512bf16();
  wrong.bf16_pairs = [](const GemmCall& call) {
    GemmCall shorter = call;
    shorter.cols -= 2;
    gemm_avx512bf16().bf16_pairs(shorter);
  };
  require_thrown<AmxMismatch>("a pair left out", [&] { check_amx(wrong); });
}

int run(uint64_t seed, int rounds, bool trapped) {
  if (supported_isas().back() != Isa::Amx) {
    std::printf("this machine cannot execute the level %s\n", isa_name(Isa::Amx));
    return kSkipped;
  }
  if (trapped && has_amx()) {
    std::puts("this processor executes the instructions, they do not trap");
    return kSkipped;
  }
  set_isa(Isa::Amx);
  if (trapped) amx_trap::install();
  check_machine(trapped);
  misuse_tiles();
  for (int round = 0; round < rounds; ++round) {
    Random random(seed + static_cast<uint64_t>(round));
    if (trapped) {
      multiply_trapped(random);
    } else {
      multiply_and_check(random);
      if (round % 10 == 0) compute_experts(random);
    }
  }
  std::printf("%s: %d rounds agree, %lld instructions trapped\n", isa_name(Isa::Amx), rounds,
              static_cast<long long>(amx_trap::trapped().instructions));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fputs("usage: megamoe-amx SEED ROUNDS [trapped]\n", stderr);
    return 2;
  }
  try {
    return run(std::strtoull(arguments[1], nullptr, 10), std::atoi(arguments[2]),
               count > 3 && std::string(arguments[3]) == "trapped");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
