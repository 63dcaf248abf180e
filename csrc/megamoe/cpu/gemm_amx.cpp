// The GEMM on AMX tiles: 32 rows by the 32 columns of a panel in four accumulators of 16 by 16.
//
// Registers: sums 0 and 1 of the first 16 rows, 2 and 3 of the others; activations 4 and 5; weights
// 6 and 7, the lower and the upper half of a panel. A step is 32 k; a panel is padded to whole
// ones.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "megamoe/cpu/amx.h"
#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"
#include "megamoe/cpu/scratch.h"

MEGAMOE_TARGET("amx-tile,amx-bf16,avx512bf16,avx512vbmi," MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/amx_tiles.h"
// The emulation needs the tiles' configuration.
#include "megamoe/cpu/amx_emulated.h"
//
#include "megamoe/cpu/fp8_vbmi.h"
#include "megamoe/cpu/pair_rows.h"

namespace megamoe::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr int kBlockRows = 2 * kTileRows;
constexpr int kColumns = PackedMatrix::kPanel;
constexpr int kStepDepth = 32;                  // k
constexpr ptrdiff_t kPairBytes = kColumns * 4;  // of a pair of k in a panel
constexpr int kStepLines = kStepDepth / 2 * kPairBytes / 64;
constexpr size_t kStepBytes = kStepLines * 64;
constexpr int kScaledSteps = PackedMatrix::kScaleCols / kStepDepth;  // that share FP8 scales
constexpr size_t kCodeBytes = kStepDepth * kColumns;                 // of a step of FP8 codes

int steps_of(int cols) { return (cols + kStepDepth - 1) / kStepDepth; }

// Activations as a tile reads them: rows at a constant stride, padded with zeros to whole steps;
// copied if they do not lie so already.
class StridedRows {
 public:
  StridedRows(const uint32_t* const* rows, int m, int cols)
      : ready_(lie_so(rows, m, cols)),
        copies_(ready_ ? 0 : PackedMatrix::pair_words(cols) * static_cast<size_t>(m)) {
    if (ready_) {
      first_ = reinterpret_cast<const std::byte*>(rows[0]);
      stride_ = m > 1 ? apart(rows[0], rows[1]) : 0;
      return;
    }
    const size_t words = PackedMatrix::pair_words(cols);
    const size_t used = (static_cast<size_t>(cols) + 1) / 2 * sizeof(uint32_t);
    for (int r = 0; r < m; ++r) {
      std::byte* row = reinterpret_cast<std::byte*>(copies_.get() + words * r);
      __builtin_memcpy(row, rows[r], used);
      __builtin_memset(row + used, 0, words * sizeof(uint32_t) - used);
    }
    first_ = reinterpret_cast<const std::byte*>(copies_.get());
    stride_ = static_cast<ptrdiff_t>(words * sizeof(uint32_t));
  }

  const std::byte* at(int row, int step) const { return first_ + row * stride_ + step * 64; }
  ptrdiff_t stride() const { return stride_; }

 private:
  static ptrdiff_t apart(const uint32_t* a, const uint32_t* b) {
    return static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(b) - reinterpret_cast<uintptr_t>(a));
  }
  static bool lie_so(const uint32_t* const* rows, int m, int cols) {
    for (int r = 2; r < m; ++r) {
      if (apart(rows[r - 1], rows[r]) != apart(rows[0], rows[1])) return false;
    }
    return cols % kStepDepth == 0;
  }

  bool ready_;
  Scratch<uint32_t> copies_;
  const std::byte* first_;
  ptrdiff_t stride_;
};

// What to bring into the second-level cache meanwhile: lines from `first` on, and from the step
// `turn` on lines from `then` on.
struct Ahead {
  const std::byte* first;
  int lines;  // a step
  int turn;
  const std::byte* then;

  // The same lines a step from one place, or nothing from nowhere.
  static Ahead from(const std::byte* first, int lines, int steps) {
    return {first, first == nullptr ? 0 : lines, steps, first};
  }
  // The `tile`-th share of what `tiles` tiles of rows bring in together, from one place.
  Ahead share(int steps, int tile, int tiles) const {
    if (tiles == 1 || lines == 0) return *this;
    const int each = (lines + tiles - 1) / tiles;
    const auto before = static_cast<size_t>(each) * static_cast<size_t>(steps * tile);
    return from(first + size_t{64} * before, each, steps);
  }
};

// Steps whose sums are one chain, and where those go.
struct Chain {
  const std::byte* words;  // bf16 pairs of the panel
  int first_step;
  int steps;
  int panel;
  const float* scales;  // of the panel's halves, or null
  bool accumulate;
  Ahead ahead;
};

// The sums of one row's 32 columns, or of the first `width`.
inline void write_row(const float* sums, const float* scales, bool accumulate, int width,
                      float* out) {
  for (int half = 0; half < 2 && width > kTileRows * half; ++half) {
    const int left = width - 16 * half;
    const __mmask16 mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
    __m512 value = _mm512_load_ps(sums + 16 * half);
    const __m512 before = _mm512_maskz_loadu_ps(mask, out + 16 * half);
    if (scales != nullptr) {
      const __m512 scale = _mm512_set1_ps(scales[half]);
      value = accumulate ? _mm512_fmadd_ps(scale, value, before) : _mm512_mul_ps(scale, value);
    } else if (accumulate) {
      value = _mm512_add_ps(before, value);
    }
    _mm512_mask_storeu_ps(out + 16 * half, mask, value);
  }
}

template <class Tiles>
class AmxGemm {
 public:
  AmxGemm(const GemmCall& call, const uint32_t* const* x, float* const* y, int m)
      : call_(call), rows_(x, m, call.cols), y_(y), m_(m) {}
  ~AmxGemm() {
    if (configured_rows_ > 0) tiles_.release();
  }
  AmxGemm(const AmxGemm&) = delete;
  AmxGemm& operator=(const AmxGemm&) = delete;

  void bf16() {
    const int steps = steps_of(call_.cols);
    for (int panel = call_.panel_begin; panel < call_.panel_end; ++panel) {
      const std::byte* here = panel_data(panel);
      const Ahead ahead =
          m_ <= kBlockRows ? near(panel, steps) : Ahead::from(after(panel), kStepLines, steps);
      multiply({here, 0, steps, panel, nullptr, call_.accumulate, ahead});
    }
  }

  // A block of columns at a time becomes bf16 in the first-level cache, once for all rows.
  void fp8() {
    alignas(64) std::byte words[kScaledSteps * kStepBytes];
    const int steps = steps_of(call_.cols);
    for (int panel = call_.panel_begin; panel < call_.panel_end; ++panel) {
      const std::byte* data = panel_data(panel);
      const std::byte* codes = data + call_.head_bytes;
      const float* scales = reinterpret_cast<const float*>(data);
      bool accumulate = call_.accumulate;
      for (int step = 0; step < steps; step += kScaledSteps, scales += 2) {
        const int count = steps - step < kScaledSteps ? steps - step : kScaledSteps;
        const std::byte* block = codes + kCodeBytes * step;
        decode(block, count, words);
        const bool last = step + count == steps;
        const std::byte* next = last ? after(panel) : block + kCodeBytes * kScaledSteps;
        const Ahead ahead = Ahead::from(next, kStepLines / 2, count);
        multiply({words, step, count, panel, scales, accumulate, ahead});
        accumulate = true;
      }
    }
  }

 private:
  // Estimated from the latency of memory: it could be measured on no machine.
  static constexpr int kNearSteps = 4;

  const std::byte* panel_data(int panel) const {
    return call_.first_panel + call_.panel_bytes * (panel - call_.panel_begin);
  }
  const std::byte* after(int panel) const {
    return panel + 1 < call_.panel_end ? panel_data(panel + 1) : call_.next;
  }

  // Few rows wait for memory: a little ahead in the same panel, then in the one after it.
  Ahead near(int panel, int steps) const {
    const std::byte* here = panel_data(panel);
    const std::byte* next = after(panel);
    const int turn = steps > kNearSteps ? steps - kNearSteps : 0;
    // The panel's beginning is in the cache already.
    return {here + kNearSteps * kStepBytes, kStepLines, turn, next != nullptr ? next : here};
  }

  static void decode(const std::byte* codes, int steps, std::byte* words) {
    for (int pair = 0; pair < steps * kStepDepth / 2; ++pair) {
      __m512i pairs[2];
      pairs_of_e4m3(codes + pair * kPairBytes / 2, pairs);
      _mm512_store_si512(words + pair * kPairBytes, pairs[0]);
      _mm512_store_si512(words + pair * kPairBytes + 64, pairs[1]);
    }
  }

  void multiply(const Chain& chain) {
    const int column = chain.panel * kColumns;
    const int width = call_.rows - column < kColumns ? call_.rows - column : kColumns;
    const int tiles = (m_ + kBlockRows - 1) / kBlockRows;
    alignas(64) float sums[kBlockRows][kColumns];
    for (int t = 0; t < tiles; ++t) {
      const int first = t * kBlockRows;
      const int rows = m_ - first < kBlockRows ? m_ - first : kBlockRows;
      configure(rows);
      const Ahead ahead = chain.ahead.share(chain.steps, t, tiles);
      const std::byte* x = rows_.at(first, chain.first_step);
      if (rows > kTileRows) {
        add_up<true>(chain, x, ahead, sums);
      } else {
        add_up<false>(chain, x, ahead, sums);
      }
      for (int r = 0; r < rows; ++r) {
        write_row(sums[r], chain.scales, chain.accumulate, width, y_[first + r] + column);
      }
    }
  }

  // Configuring clears the tiles and takes hundreds of cycles: only when the rows change.
  void configure(int rows) {
    if (rows == configured_rows_) return;
    const int upper = rows < kTileRows ? rows : kTileRows;
    TileConfig config;
    for (const int tile : {0, 1, 4}) config.set(tile, upper);
    for (const int tile : {2, 3, 5}) config.set(tile, rows - upper);
    for (const int tile : {6, 7}) config.set(tile, kStepDepth / 2);
    tiles_.configure(config);
    configured_rows_ = rows;
  }

  template <bool kBoth>
  void add_up(const Chain& chain, const std::byte* x, Ahead ahead,
              float (&sums)[kBlockRows][kColumns]) {
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    if constexpr (kBoth) {
      tiles_.template zero<2>();
      tiles_.template zero<3>();
    }
    const ptrdiff_t stride = rows_.stride();
    const std::byte* w = chain.words;
    for (int step = 0; step < chain.steps; ++step, x += 64, w += kStepBytes) {
      tiles_.template load<6>(w, kPairBytes);
      tiles_.template load<4>(x, stride);
      tiles_.template dot<0, 4, 6>();
      tiles_.template load<7>(w + kPairBytes / 2, kPairBytes);
      tiles_.template dot<1, 4, 7>();
      if constexpr (kBoth) {
        tiles_.template load<5>(x + kTileRows * stride, stride);
        tiles_.template dot<2, 5, 6>();
        tiles_.template dot<3, 5, 7>();
      }
      if (step == ahead.turn) ahead.first = ahead.then;
      for (int line = 0; line < ahead.lines; ++line, ahead.first += 64) {
        __builtin_prefetch(ahead.first, 0, 2);
      }
    }
    constexpr ptrdiff_t kSumBytes = sizeof(sums[0]);
    tiles_.template store<0>(sums[0], kSumBytes);
    tiles_.template store<1>(sums[0] + kTileRows, kSumBytes);
    if constexpr (kBoth) {
      tiles_.template store<2>(sums[kTileRows], kSumBytes);
      tiles_.template store<3>(sums[kTileRows] + kTileRows, kSumBytes);
    }
  }

  const GemmCall& call_;
  StridedRows rows_;
  float* const* y_;
  int m_;
  int configured_rows_ = 0;
  Tiles tiles_;
};

// Rows whose pairs stay in the second-level cache, beside the panel that all of them are multiplied
// by and the next one: every processor with AMX has at least 2 MB of it. A tile of an expert, 96
// rows, is one block up to 5,440 columns.
int amx_block_rows(int cols) {
  constexpr int kCacheBytes = 1024 * 1024;
  const int rows = kCacheBytes / (steps_of(cols) * 64) / kBlockRows * kBlockRows;
  return rows > kBlockRows ? rows : kBlockRows;
}

template <class Tiles>
void amx_bf16(const GemmCall& call) {
  round_blocks(call, amx_block_rows(call.cols),
               [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
                 AmxGemm<Tiles>(block, x, y, m).bf16();
               });
}

template <class Tiles>
void amx_fp8(const GemmCall& call) {
  round_blocks(call, amx_block_rows(call.cols),
               [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
                 AmxGemm<Tiles>(block, x, y, m).fp8();
               });
}

}  // namespace
}  // namespace megamoe::cpu
MEGAMOE_TARGET_END

namespace megamoe::cpu {
namespace {

template <class Tiles>
GemmKernels amx_kernels() {
  GemmKernels kernels = gemm_avx512bf16();
  kernels.bf16_pairs = amx_bf16<Tiles>;
  kernels.fp8_pairs = amx_fp8<Tiles>;
  kernels.pairs_depth = kStepDepth;
  return kernels;
}

}  // namespace

GemmKernels gemm_amx() { return amx_kernels<HardwareTiles>(); }

GemmKernels gemm_amx_emulated() { return amx_kernels<EmulatedTiles>(); }

}  // namespace megamoe::cpu
#endif
