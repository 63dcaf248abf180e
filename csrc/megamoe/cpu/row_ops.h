// Passes over one row, one table per instruction-set level; all levels give the same bits.
#pragma once

#include <cstdint>

#include "megamoe/cpu/isa.h"

namespace megamoe::cpu {

struct RowOps {
  // e4m3 with one scale per kScaleBlock elements; the last block may be short.
  void (*quantise)(const float* x, uint8_t* codes, float* scales, int n);
  void (*dequantise)(const uint8_t* codes, const float* scales, float* x, int n);
  void (*to_bf16)(const float* x, uint16_t* out, int n);
  void (*from_bf16)(const uint16_t* x, float* out, int n);
  // out = x * factor, rounded once to the wire.
  void (*scale_to_bf16)(const float* x, float factor, uint16_t* out, int n);
  void (*scale_to_f32)(const float* x, float factor, float* out, int n);
  void (*add_bf16)(const uint16_t* x, float* sum, int n);
  void (*add_f32)(const float* x, float* sum, int n);
  // gate = silu(gate) * up.
  void (*swiglu)(float* gate, const float* up, int n);
};

// The table of the level in use.
const RowOps& row_ops();

const RowOps& row_ops_portable();
#if defined(__x86_64__)
const RowOps& row_ops_avx2();
const RowOps& row_ops_avx512();
#endif

}  // namespace megamoe::cpu
