// The tile GEMM, written once over the vectors of a simd_*.h header.
// Included once per translation unit, inside the target region.
#pragma once

namespace megamoe::cpu {
namespace {

// A panel step: how the 32 columns of one k (or pair of k) are stored and multiplied. `half` is the
// first lane within the panel's lower half; the tile covers lanes half.. and 16 + half..
struct Fp32Step {
  using Activation = float;
  using Factor = simd::f32;
  using Operand = simd::f32;
  static constexpr int kDepth = 1;       // k a step
  static constexpr int kBlockSteps = 0;  // that share scales at the panel's head; 0 without
  static constexpr int kPairedRows = 3;  // up to which two panels go together
  static constexpr size_t kBytes = 32 * sizeof(float);
  static void load(const std::byte* step, int half, Operand& low, Operand& high) {
    const float* w = reinterpret_cast<const float*>(step);
    low = simd::load(w + half);
    high = simd::load(w + 16 + half);
  }
  static Factor broadcast(const Activation* x) { return simd::set1(*x); }
  static simd::f32 multiply(Factor x, Operand w, simd::f32 sum) { return simd::fma(x, w, sum); }
};

struct Bf16Step : Fp32Step {
  static constexpr size_t kBytes = 32 * sizeof(uint16_t);
  static void load(const std::byte* step, int half, Operand& low, Operand& high) {
    simd::load_bf16_halves(reinterpret_cast<const uint32_t*>(step) + half, low, high);
  }
};

// out (+)= sums, or (+)= scale * sums.
template <bool kScaled>
inline void write_sums(simd::f32 sums, simd::f32 scale, bool accumulate, float* out) {
  if constexpr (kScaled) {
    sums = accumulate ? simd::fma(scale, sums, simd::load(out)) : simd::mul(scale, sums);
  } else if (accumulate) {
    sums = simd::add(simd::load(out), sums);
  }
  simd::store(out, sums);
}

// The same for the first `count` lanes.
template <bool kScaled>
inline void write_tail(simd::f32 sums, simd::f32 scale, bool accumulate, int count, float* out) {
  float lanes[simd::kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = out[i];
  write_sums<kScaled>(sums, scale, accumulate, lanes);
  for (int i = 0; i < count; ++i) out[i] = lanes[i];
}

// One panel's sums of a register tile: two vectors a row, for lanes `half`.. and 16 + `half`...
template <bool kScaled, int MR, int NP>
inline void write_panel(const simd::f32 (&sums)[MR][NP][2], int p, int half, int width,
                        const float* scales, bool accumulate, float* const* y, int column) {
  simd::f32 scale[2] = {simd::set1(0.0f), simd::set1(0.0f)};
  if constexpr (kScaled) {
    scale[0] = simd::set1(scales[0]);
    scale[1] = simd::set1(scales[1]);
  }
#pragma GCC unroll 64
  for (int r = 0; r < MR; ++r) {
    float* out = y[r] + column + half;
    if (width >= 32) {
      write_sums<kScaled>(sums[r][p][0], scale[0], accumulate, out);
      write_sums<kScaled>(sums[r][p][1], scale[1], accumulate, out + 16);
      continue;
    }
    for (int h = 0; h < 2; ++h) {
      const int left = width - half - 16 * h;
      const int count = left < simd::kLanes ? left : simd::kLanes;
      if (count > 0) write_tail<kScaled>(sums[r][p][h], scale[h], accumulate, count, out + 16 * h);
    }
  }
}

// How far ahead a panel is fetched from where it is read.
inline constexpr size_t kNearBytes = 4096;

// What to bring into the second-level cache meanwhile, so many bytes a step.
struct Ahead {
  const std::byte* first;
  size_t step;
};

// The beginning of `next`, if known, spread over so many steps. Where memory is the limit more
// would only delay what is read now.
inline Ahead beginning(const std::byte* next, int steps, const std::byte* otherwise) {
  if (next == nullptr) return {otherwise, 0};
  return {next, (kNearBytes - 1) / static_cast<size_t>(steps) + 1};
}

// MR rows by NP panels; every sum is one chain over ascending k, or over a block of it.
template <class Step, int MR, int NP>
inline void tile(const GemmCall& call, const typename Step::Activation* const* x, float* const* y,
                 int panel, int half, int steps, Ahead ahead) {
  const typename Step::Activation* rows[MR];
#pragma GCC unroll 64
  for (int r = 0; r < MR; ++r) rows[r] = x[r] + call.first_k;
  const std::byte* panels = call.first_panel + call.panel_bytes * (panel - call.panel_begin);
  const std::byte* data = panels + call.head_bytes;
  const size_t panel_bytes = call.panel_bytes;
  bool accumulate = call.accumulate;
  for (int first = 0, block = 0; first < steps; ++block) {
    const int end = Step::kBlockSteps > 0 && steps - first > Step::kBlockSteps
                        ? first + Step::kBlockSteps
                        : steps;
    simd::f32 sums[MR][NP][2];
#pragma GCC unroll 64
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 64
      for (int p = 0; p < NP; ++p) sums[r][p][0] = sums[r][p][1] = simd::set1(0.0f);
    }
    for (int k = first; k < end; ++k) {
      typename Step::Operand w[NP][2];
#pragma GCC unroll 64
      for (int p = 0; p < NP; ++p) {
        const std::byte* step = data + p * panel_bytes;
        Step::load(step, half, w[p][0], w[p][1]);
        __builtin_prefetch(step + kNearBytes);
        if constexpr (Step::kBytes > 64) __builtin_prefetch(step + kNearBytes + 64);
      }
      data += Step::kBytes;
      __builtin_prefetch(ahead.first, 0, 2);
      ahead.first += ahead.step;
#pragma GCC unroll 64
      for (int r = 0; r < MR; ++r) {
        const typename Step::Factor factor = Step::broadcast(rows[r] + k);
#pragma GCC unroll 64
        for (int p = 0; p < NP; ++p) {
          sums[r][p][0] = Step::multiply(factor, w[p][0], sums[r][p][0]);
          sums[r][p][1] = Step::multiply(factor, w[p][1], sums[r][p][1]);
        }
      }
    }
#pragma GCC unroll 64
    for (int p = 0; p < NP; ++p) {
      const int column = (panel + p) * 32;
      const int width = call.rows - column < 32 ? call.rows - column : 32;
      if constexpr (Step::kBlockSteps > 0) {
        const auto* scales = reinterpret_cast<const float*>(panels + p * panel_bytes) + 2 * block;
        write_panel<true, MR, NP>(sums, p, half, width, scales, accumulate, y, column);
      } else if (call.scales != nullptr) {
        write_panel<true, MR, NP>(sums, p, half, width, call.scales, accumulate, y, column);
      } else {
        write_panel<false, MR, NP>(sums, p, half, width, nullptr, accumulate, y, column);
      }
    }
    first = end;
    accumulate = true;
  }
}

// Rows of a register tile: two vectors a row, two for the weights, one for the activation.
inline constexpr int kTileRows = simd::kLanes == 16 ? 12 : 6;

// `last` is what to look ahead to while the last panels are read for the last time.
template <class Step, int MR>
inline void row_tile(const GemmCall& call, const typename Step::Activation* const* x,
                     float* const* y, int steps, int panel_begin, int panel_end, Ahead ahead,
                     Ahead last) {
  // Few rows have few chains: several panels at a time hide the latency of the multiply-add.
  constexpr int kPanels = MR == 1 ? 4 : MR <= Step::kPairedRows ? 2 : 1;
  for (int half = 0; half < 16; half += simd::kLanes) {
    const int last_end = half + simd::kLanes < 16 ? -1 : panel_end;
    int panel = panel_begin;
    if constexpr (kPanels > 1) {
      for (; panel + kPanels <= panel_end; panel += kPanels) {
        tile<Step, MR, kPanels>(call, x, y, panel, half, steps,
                                panel + kPanels == last_end ? last : ahead);
      }
    }
    for (; panel < panel_end; ++panel) {
      tile<Step, MR, 1>(call, x, y, panel, half, steps, panel + 1 == last_end ? last : ahead);
    }
  }
}

template <class Step, int MR = kTileRows>
inline void row_tile_of(int mr, const GemmCall& call, const typename Step::Activation* const* x,
                        float* const* y, int steps, int panel_begin, int panel_end, Ahead ahead,
                        Ahead last) {
  if constexpr (MR > 1) {
    if (mr < MR) {
      return row_tile_of<Step, MR - 1>(mr, call, x, y, steps, panel_begin, panel_end, ahead, last);
    }
  }
  row_tile<Step, MR>(call, x, y, steps, panel_begin, panel_end, ahead, last);
}

// A block of rows whose activations stay in the second-level cache while panels stream by.
template <class Step>
void block_gemm(const GemmCall& call, const typename Step::Activation* const* x, float* const* y,
                int m, int steps) {
  const int tiles = (m + kTileRows - 1) / kTileRows;
  if (tiles == 1) {
    // Memory is the limit: the tile's own reads keep it busy.
    return row_tile_of<Step>(m, call, x, y, steps, call.panel_begin, call.panel_end,
                             {call.first_panel, 0}, beginning(call.next, steps, call.first_panel));
  }
  for (int panel = call.panel_begin; panel < call.panel_end; ++panel) {
    const std::byte* here = call.first_panel + call.panel_bytes * (panel - call.panel_begin);
    const std::byte* next = panel + 1 < call.panel_end ? here + call.panel_bytes : call.next;
    for (int t = 0; t < tiles; ++t) {
      const int first = static_cast<int>(static_cast<int64_t>(m) * t / tiles);
      const int last = static_cast<int>(static_cast<int64_t>(m) * (t + 1) / tiles);
      // This panel is in the cache after its first tile: memory's time belongs to the next one.
      Ahead ahead{here, 0};
      if (next != nullptr && static_cast<size_t>(steps) * 64 * t < call.panel_bytes) {
        ahead = {next + static_cast<size_t>(steps) * 64 * t, 64};
      }
      row_tile_of<Step>(last - first, call, x + first, y + first, steps, panel, panel + 1, ahead,
                        ahead);
    }
  }
}

// What the first tile of an FP8 panel's rows looks ahead to, at the panel's first step.
inline Ahead fp8_ahead(const GemmCall& call, bool more, const std::byte* panel, int tiles,
                       int steps) {
  const std::byte* next = more ? panel + call.panel_bytes : call.next;
  if (tiles == 1) return beginning(more ? nullptr : next, steps, panel);
  if (next == nullptr) return {panel, 0};
  return {next, call.panel_bytes / static_cast<size_t>(steps)};
}

// The same for FP8 panels: a block of columns at a time becomes bf16 in the first-level cache, once
// for all rows.
template <class Step, class Decode>
void block_gemm_fp8(const GemmCall& call, const typename Step::Activation* const* x,
                    float* const* y, int m, Decode decode) {
  constexpr int kBlock = 128;
  alignas(64) uint16_t words[kBlock * 32];
  const int depth = (call.cols + Step::kDepth - 1) / Step::kDepth * Step::kDepth;
  const int tiles = (m + kTileRows - 1) / kTileRows;
  GemmCall block = call;
  block.first_panel = reinterpret_cast<const std::byte*>(words);
  block.head_bytes = 0;
  for (int panel = call.panel_begin; panel < call.panel_end; ++panel) {
    const std::byte* data = call.first_panel + call.panel_bytes * (panel - call.panel_begin);
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(data + call.head_bytes);
    const Ahead nothing{data, 0};
    const Ahead panel_ahead =
        fp8_ahead(call, panel + 1 < call.panel_end, data, tiles, depth / Step::kDepth);
    block.scales = reinterpret_cast<const float*>(data);
    block.panel_begin = panel;
    block.accumulate = call.accumulate;
    for (int k = 0; k < depth; k += kBlock) {
      const int cols = depth - k < kBlock ? depth - k : kBlock;
      decode(codes + k * 32, cols * 32, words);
      block.first_k = k / Step::kDepth;
      Ahead ahead{panel_ahead.first + panel_ahead.step * static_cast<size_t>(block.first_k),
                  panel_ahead.step};
      for (int t = 0; t < tiles; ++t, ahead = nothing) {
        const int first = static_cast<int>(static_cast<int64_t>(m) * t / tiles);
        const int last = static_cast<int>(static_cast<int64_t>(m) * (t + 1) / tiles);
        row_tile_of<Step>(last - first, block, x + first, y + first, cols / Step::kDepth, panel,
                          panel + 1, ahead, ahead);
      }
      block.accumulate = true;
      block.scales += 2;
    }
  }
}

inline int block_rows(int cols, size_t activation_bytes) {
  constexpr size_t kBlockBytes = 384 * 1024;
  const size_t rows = kBlockBytes / (static_cast<size_t>(cols) * activation_bytes);
  return static_cast<int>(rows / kTileRows * kTileRows) + kTileRows;
}

template <class Step>
void gemm(const GemmCall& call) {
  const int block = block_rows(call.cols, sizeof(float));
  for (int first = 0; first < call.m; first += block) {
    const int m = call.m - first < block ? call.m - first : block;
    block_gemm<Step>(block_call(call, first, m), call.x + first, call.y + first, m, call.cols);
  }
}

template <void (*decode)(const uint8_t*, int, uint16_t*)>
void gemm_fp8(const GemmCall& call) {
  const int block = block_rows(call.cols, sizeof(float));
  for (int first = 0; first < call.m; first += block) {
    const int m = call.m - first < block ? call.m - first : block;
    block_gemm_fp8<Bf16Step>(block_call(call, first, m), call.x + first, call.y + first, m, decode);
  }
}

}  // namespace
}  // namespace megamoe::cpu
