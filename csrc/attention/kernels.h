// The vectorised inner loops of the attention side, one table per instruction-set level.
#pragma once

#include <cstdint>

#include "megamoe/cpu/isa.h"

namespace attention {

// Queries of consecutive rows of one slot against one key-value head. All strides in elements.
struct Sweep {
  const void* keys;  // of the layer and head: page p starts at keys + p * page_stride
  const void* values;
  bool bf16;
  int head_dim;
  int padded_dim;  // elements between positions of a page; those past head_dim are zero
  int64_t page_stride;
  int page_size;
  int pages;  // in the cache: valid ids are [0, pages)
  const int32_t* page_table;
  int rows;
  int group;  // query heads that share this key-value head
  const int32_t* lengths;
  float scale;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  float* lse;
  int64_t lse_stride;
};

struct Kernels {
  // out = x * weight / sqrt(mean(x^2) + eps); out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int width);
  // residual += delta, then rms_norm of it.
  void (*add_rms_norm)(float* residual, const float* delta, const float* weight, float eps,
                       float* out, int width);
  // Rotates elements [0, 2 * half) of each head.
  void (*rope)(float* x, const float* cos, const float* sin, int heads, int head_dim, int half);
  void (*silu_mul)(const float* gate, const float* up, float* out, int width);
  void (*sigmoid)(const float* x, float* out, int width);
  // The largest element; NaN if any element is NaN. width >= 1.
  float (*max)(const float* x, int width);
  // The first index that holds `value`; width if none does.
  int (*find)(const float* x, float value, int width);
  // Writes the indices of the elements >= threshold to out [width], ascending; returns how many.
  int (*at_least)(const float* x, float threshold, int width, int32_t* out);
  // out = exp((x - shift) * scale); returns the sum of out.
  float (*exp_sum)(const float* x, float shift, float scale, float* out, int width);
  // out = a * x + b * y; out may be x.
  void (*mix)(float a, const float* x, float b, const float* y, float* out, int width);
  // Attention with an online softmax over blocks of positions that start at fixed multiples, so a
  // row's order of operations is its own. Returns -1, or the first position whose page id is bad.
  int (*sweep)(const Sweep& sweep);
};

const Kernels& kernels_of(megamoe::cpu::Isa isa);
inline const Kernels& kernels() { return kernels_of(megamoe::cpu::current_isa()); }

const Kernels& kernels_portable();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

}  // namespace attention
