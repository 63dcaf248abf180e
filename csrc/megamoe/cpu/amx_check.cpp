#if defined(__x86_64__)
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/amx.h"
#include "megamoe/cpu/gemm.h"

namespace megamoe::cpu {
namespace {

// Every register, with a tile of rows that is not full, and several steps.
constexpr int kRows = 27;
constexpr int kCols = 96;
constexpr int kColumns = 32;

struct Block {
  alignas(64) uint16_t weights[kCols * kColumns];
  alignas(64) uint16_t activations[kRows][kCols];
};

// Normal numbers of either sign between 2^-8 and 2^8.
uint16_t next_bf16(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  const uint32_t random = state >> 8;
  return static_cast<uint16_t>((random & 0x807fu) | (119u + (random >> 16) % 16u) << 7);
}

// Two orders of a sum of kCols products are less than this apart, as a part of their magnitudes.
constexpr float kRounding = 2.0f * kCols / (1 << 24);

// Of the products that make an output, added up.
float magnitude(const Block& block, int row, int column) {
  float sum = 0;
  for (int k = 0; k < kCols; ++k) {
    const uint16_t weight = block.weights[k / 2 * 2 * kColumns + column * 2 + k % 2];
    sum += std::abs(bf16_to_f32(weight) * bf16_to_f32(block.activations[row][k]));
  }
  return sum;
}

}  // namespace

void tile_fault(const char* why) { throw TileFault(why); }

void check_amx(const GemmKernels& kernels) {
  Block block;
  uint32_t state = 1;
  for (uint16_t& weight : block.weights) weight = next_bf16(state);
  for (auto& row : block.activations) {
    for (uint16_t& value : row) value = next_bf16(state);
  }
  const uint32_t* pairs[kRows];
  float sums[2][kRows][kColumns];
  float* y[2][kRows];
  for (int r = 0; r < kRows; ++r) {
    pairs[r] = reinterpret_cast<const uint32_t*>(block.activations[r]);
    for (int which = 0; which < 2; ++which) y[which][r] = sums[which][r];
  }
  const auto multiply = [&](const GemmKernels& chosen, float* const* to) {
    chosen.bf16_pairs({nullptr, pairs, to, kRows, reinterpret_cast<const std::byte*>(block.weights),
                       sizeof(block.weights), kColumns, kCols, 0, 1, false, 0, nullptr});
  };
  multiply(kernels, y[0]);
  multiply(gemm_amx_emulated(), y[1]);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const float apart = std::abs(sums[0][r][c] - sums[1][r][c]);
      // Not a NaN either.
      if (apart <= kRounding * magnitude(block, r, c)) continue;
      throw AmxMismatch(
          "this processor's AMX tiles do not compute what their instructions are documented to; "
          "set AFD_ISA=avx512bf16 in the environment to do without AMX");
    }
  }
}

}  // namespace megamoe::cpu
#endif
