// What a compiled level of the GEMM offers to PackedMatrix.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megamoe::cpu {

// One GEMM over whole panels; see gemm_rows.
struct GemmCall {
  const float* const* x;
  const uint32_t* const* pairs;  // instead of x: its rows as `round` makes them
  float* const* y;
  int m;
  const std::byte* first_panel;  // of panel_begin
  size_t panel_bytes;
  int rows;  // of the weight: columns of y
  int cols;  // of the weight: length of a row of x
  int panel_begin;
  int panel_end;
  bool accumulate;
  size_t head_bytes;              // of a panel: its FP8 scales
  const std::byte* next;          // read after these panels, or null
  int first_k = 0;                // where x starts, in activations
  const float* scales = nullptr;  // of the sums of a panel's halves
};

// The call for a block of m of its rows: before the last one the same panels come again.
inline GemmCall block_call(const GemmCall& call, int first, int m) {
  GemmCall block = call;
  if (first + m < call.m) block.next = call.first_panel;
  return block;
}

// An FP8 panel: scales [blocks of columns][2], padded to a cache line, then the codes, which lie as
// the bf16 that they become; for fp8_pairs in the order that fp8_pair_position gives.
constexpr size_t fp8_head_bytes(int scale_blocks) {
  constexpr size_t kLine = 64;
  return (static_cast<size_t>(scale_blocks) * 2 * sizeof(float) + kLine - 1) / kLine * kLine;
}

// Of a code within the 64 of two k: interleaving bytes of a 128-bit lane's lower or upper half
// makes the pairs of four columns.
constexpr size_t fp8_pair_position(size_t lane, size_t parity) {
  return lane % 16 / 4 * 16 + lane / 16 * 8 + lane % 4 * 2 + parity;
}

struct GemmKernels {
  void (*fp32)(const GemmCall&);
  void (*bf16)(const GemmCall&);
  void (*fp8)(const GemmCall&);
  // Null where the level has no such instruction.
  void (*bf16_pairs)(const GemmCall&);
  void (*fp8_pairs)(const GemmCall&);
  void (*round)(const float* x, int cols, uint32_t* pairs);
  int pairs_depth = 2;  // k that the panels of pairs are padded to a multiple of, with zeros
};

GemmKernels gemm_portable();
#if defined(__x86_64__)
GemmKernels gemm_avx2();
GemmKernels gemm_avx512();
GemmKernels gemm_avx512bf16();
GemmKernels gemm_amx();
GemmKernels gemm_amx_emulated();  // the same with its instructions in software
#endif

}  // namespace megamoe::cpu
