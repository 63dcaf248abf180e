#if defined(__x86_64__)
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/amx.h"

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
  if (__builtin_memcmp(sums[0], sums[1], sizeof(sums[0])) == 0) return;
  throw AmxMismatch(
      "this processor's AMX tiles do not compute the bits that their instructions are documented "
      "to; set AFD_ISA=avx512bf16 in the environment to do without AMX");
}

}  // namespace megamoe::cpu
#endif
