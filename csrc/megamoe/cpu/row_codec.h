// The wire's row operations, vectorised: one table per instruction-set level. Every level gives the
// same bits, except swiglu, which is within 2 ulp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/isa.h"
#include "megamoe/numerics.h"

namespace megamoe::cpu {

struct RowCodec {
  void (*encode_fp8)(ScaleFormat format, const float* x, int hidden, uint8_t* codes,
                     std::byte* scales);
  void (*decode_fp8)(ScaleFormat format, const uint8_t* codes, const std::byte* scales, int hidden,
                     float* out);
  void (*encode_bf16)(const float* x, int n, uint16_t* out);
  void (*decode_bf16)(const uint16_t* x, int n, float* out);
  // out = weight * x, rounded once to FP32 and, in the first, once more to BF16.
  void (*scale_bf16)(const float* x, float weight, int n, uint16_t* out);
  void (*scale_f32)(const float* x, float weight, int n, float* out);
  // sums += weight * x, the product rounded first.
  void (*add_scaled)(const float* x, float weight, int n, float* sums);
  // out = the sum of `count` rows of the named type, in order, from zero.
  void (*sum_bf16)(const std::byte* const* rows, int count, int n, float* out);
  void (*sum_f32)(const std::byte* const* rows, int count, int n, float* out);
  // Blocks of 16 gates followed by their 16 ups; out = silu(gate) * up for `n` columns.
  void (*swiglu)(const float* gate_up, int n, float* out);
};

constexpr int kGateBlock = 16;

// The table of current_isa().
const RowCodec& row_codec();

const RowCodec& row_codec_portable();
#if defined(__x86_64__)
const RowCodec& row_codec_avx2();
const RowCodec& row_codec_avx512();
#endif

}  // namespace megamoe::cpu
