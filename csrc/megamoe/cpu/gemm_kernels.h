// What a compiled level of the GEMM offers to PackedMatrix.
#pragma once

#include <cstddef>

namespace megamoe::cpu {

// One GEMM over whole panels; see gemm_rows.
struct GemmCall {
  const float* const* x;
  float* const* y;
  int m;
  const std::byte* first_panel;  // of panel_begin
  size_t panel_bytes;
  int rows;  // of the weight: columns of y
  int cols;  // of the weight: length of a row of x
  int panel_begin;
  int panel_end;
  bool accumulate;
};

struct GemmKernels {
  void (*fp32)(const GemmCall&);
  void (*bf16)(const GemmCall&);
  void (*bf16_pairs)(const GemmCall&);  // null where the level has no such instruction
};

GemmKernels gemm_portable();
#if defined(__x86_64__)
GemmKernels gemm_avx2();
GemmKernels gemm_avx512();
GemmKernels gemm_avx512bf16();
#endif

}  // namespace megamoe::cpu
