#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"
#include "megamoe/cpu/scratch.h"

MEGAMOE_TARGET("avx512bf16,avx512vbmi," MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/simd_avx512.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"
//
#include "megamoe/cpu/fp8_avx512.h"
#include "megamoe/cpu/fp8_vbmi.h"
#include "megamoe/cpu/pair_rows.h"

namespace megamoe::cpu {
namespace {

// Two k a step: a 32-bit word holds the bf16 pair of one column, or of one activation row.
struct Bf16PairStep {
  using Activation = uint32_t;
  using Factor = __m512bh;
  using Operand = __m512bh;
  static constexpr int kBlockSteps = 0;
  static constexpr int kPairedRows = 3;
  static constexpr size_t kBytes = 64 * sizeof(uint16_t);
  static void load(const std::byte* step, int, Operand& low, Operand& high) {
    low = (__m512bh)_mm512_load_si512(step);
    high = (__m512bh)_mm512_load_si512(step + 64);
  }
  static Factor broadcast(const Activation* x) {
    __m512i pair = _mm512_set1_epi32(static_cast<int>(*x));
#if defined(__clang__)
    // clang 16's VectorCombine does not end on a broadcast that becomes bf16 afterwards.
    asm("" : "+v"(pair));
#endif
    return (__m512bh)pair;
  }
  static simd::f32 multiply(Factor x, Operand w, simd::f32 sum) {
    return _mm512_dpbf16_ps(sum, x, w);
  }
};

// The same from e4m3 codes, made bf16 in registers.
struct Fp8PairStep : Bf16PairStep {
  static constexpr int kBlockSteps = 64;
  static constexpr int kPairedRows = 5;
  static constexpr size_t kBytes = 64;
  static void load(const std::byte* step, int, Operand& low, Operand& high) {
    __m512i pairs[2];
    pairs_of_e4m3(step, pairs);
    low = (__m512bh)pairs[0];
    high = (__m512bh)pairs[1];
  }
};

int pair_block_rows(const GemmCall& call) {
  return block_rows((call.cols + 1) / 2, sizeof(uint32_t));
}

void gemm_bf16_pairs(const GemmCall& call) {
  round_blocks(call, pair_block_rows(call),
               [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
                 block_gemm<Bf16PairStep>(block, x, y, m, (block.cols + 1) / 2);
               });
}

void gemm_fp8_pairs(const GemmCall& call) {
  round_blocks(call, pair_block_rows(call),
               [](const GemmCall& block, const uint32_t* const* x, float* const* y, int m) {
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
