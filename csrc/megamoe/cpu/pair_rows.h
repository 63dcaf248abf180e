// Rows of activations as bf16 pairs, AVX512-BF16.
// Included once per translation unit, inside the target region.
#pragma once

namespace megamoe::cpu {
namespace {

// Rounds a row to bf16, nearest even; pads an odd length with a zero.
void round_row(const float* x, int cols, uint32_t* pairs) {
  uint16_t* out = reinterpret_cast<uint16_t*>(pairs);
  int k = 0;
  for (; k + 16 <= cols; k += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k),
                        (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + k)));
  }
  if (k < cols) {
    const __mmask16 mask = static_cast<__mmask16>((1u << (cols - k)) - 1);
    const __mmask16 padded = static_cast<__mmask16>((1u << (cols - k + cols % 2)) - 1);
    const __m256i last = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + k));
    _mm256_mask_storeu_epi16(out + k, padded, last);
  }
}

// Calls compute(call, rounded rows, their y, how many) for blocks of at most `block` rows.
template <class Compute>
void round_blocks(const GemmCall& call, int block, Compute compute) {
  if (call.pairs != nullptr) {
    for (int first = 0; first < call.m; first += block) {
      const int m = call.m - first < block ? call.m - first : block;
      compute(block_call(call, first, m), call.pairs + first, call.y + first, m);
    }
    return;
  }
  const int rows = call.m < block ? call.m : block;
  const size_t stride = PackedMatrix::pair_words(call.cols);
  const Scratch<uint32_t> pairs(stride * rows);
  const Scratch<const uint32_t*> x(rows);
  for (int first = 0; first < call.m; first += block) {
    const int m = call.m - first < block ? call.m - first : block;
    for (int r = 0; r < m; ++r) {
      round_row(call.x[first + r], call.cols, pairs.get() + stride * r);
      x[r] = pairs.get() + stride * r;
    }
    compute(block_call(call, first, m), x.get(), call.y + first, m);
  }
}

}  // namespace
}  // namespace megamoe::cpu
