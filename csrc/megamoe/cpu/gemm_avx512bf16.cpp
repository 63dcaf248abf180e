#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"
#include "megamoe/cpu/scratch.h"

namespace megamoe::cpu {
namespace {

// The bf16 of the 128 codes without a sign: their low bytes, then their high ones.
struct Bf16OfCode {
  alignas(64) uint8_t bytes[4][64] = {};
  constexpr Bf16OfCode() {
    for (int code = 0; code < 128; ++code) {
      const int bits = bf16_of(code);
      bytes[code / 64][code % 64] = static_cast<uint8_t>(bits & 0xff);
      bytes[2 + code / 64][code % 64] = static_cast<uint8_t>(bits >> 8);
    }
  }
  static constexpr int bf16_of(int code) {
    if (code == 0) return 0;
    int exponent = code >> 3;
    int mantissa = code & 7;
    if (exponent == 0) {  // a subnormal becomes a normal number
      exponent = 1;
      for (; mantissa < 8; mantissa *= 2) --exponent;
    }
    return (exponent + 120) << 7 | (mantissa & 7) << 4;
  }
};
constexpr Bf16OfCode kBf16OfCode;

}  // namespace
}  // namespace megamoe::cpu

MEGAMOE_TARGET("avx512bf16,avx512vbmi," MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/simd_avx512.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"
//
#include "megamoe/cpu/fp8_avx512.h"

namespace megamoe::cpu {
namespace {

// Two k a step: a 32-bit word holds the bf16 pair of one column, or of one activation row.
struct Bf16PairStep {
  using Activation = uint32_t;
  using Factor = __m512bh;
  using Operand = __m512bh;
  static constexpr int kDepth = 2;
  static constexpr int kBlockSteps = 0;
  static constexpr int kPairedRows = 3;
  static constexpr size_t kBytes = 64 * sizeof(uint16_t);
  static void load(const std::byte* step, int, Operand& low, Operand& high) {
    low = (__m512bh)_mm512_load_si512(step);
    high = (__m512bh)_mm512_load_si512(step + 64);
  }
  static Factor broadcast(const Activation* x) {
    return (__m512bh)_mm512_set1_epi32(static_cast<int>(*x));
  }
  static simd::f32 multiply(Factor x, Operand w, simd::f32 sum) {
    return _mm512_dpbf16_ps(sum, x, w);
  }
};

// The same from e4m3 codes, made bf16 in registers by table: a code without its sign picks one of
// 128 low and one of 128 high bytes.
struct Fp8PairStep : Bf16PairStep {
  static constexpr int kBlockSteps = 64;
  static constexpr int kPairedRows = 5;
  static constexpr size_t kBytes = 64;
  static void load(const std::byte* step, int, Operand& low, Operand& high) {
    const __m512i codes = _mm512_load_si512(step);
    const __m512i lower = _mm512_permutex2var_epi8(table(0), codes, table(1));
    const __m512i unsigned_upper = _mm512_permutex2var_epi8(table(2), codes, table(3));
    // unsigned_upper | (codes & the sign bit)
    const __m512i upper =
        _mm512_ternarylogic_epi64(unsigned_upper, codes, _mm512_set1_epi8(-128), 0xf8);
    low = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
    high = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
  }
  static __m512i table(int quarter) { return _mm512_load_si512(kBf16OfCode.bytes[quarter]); }
};

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

// Calls compute(call, rounded rows, their y, how many) for blocks that stay in the second-level
// cache.
template <class Compute>
void round_blocks(const GemmCall& call, Compute compute) {
  const int steps = (call.cols + 1) / 2;
  const int block = block_rows(steps, sizeof(uint32_t));
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

void gemm_bf16_pairs(const GemmCall& call) {
  round_blocks(call, [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
    block_gemm<Bf16PairStep>(block, x, y, m, (block.cols + 1) / 2);
  });
}

void gemm_fp8_pairs(const GemmCall& call) {
  round_blocks(call, [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
    block_gemm<Fp8PairStep>(block, x, y, m, (block.cols + 1) / 2);
  });
}

}  // namespace
}  // namespace megamoe::cpu
MEGAMOE_TARGET_END

namespace megamoe::cpu {

GemmKernels gemm_avx512bf16() {
  return {gemm<Fp32Step>,  gemm<Bf16Step>, gemm_fp8<bf16_of_e4m3>,
          gemm_bf16_pairs, gemm_fp8_pairs, round_row};
}

}  // namespace megamoe::cpu
#endif
