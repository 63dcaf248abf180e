#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"

MEGAMOE_TARGET(MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/simd_avx512.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"
//
#include "megamoe/cpu/fp8_avx512.h"
MEGAMOE_TARGET_END

namespace megamoe::cpu {

GemmKernels gemm_avx512() {
  return {gemm<Fp32Step>, gemm<Bf16Step>, gemm_fp8<bf16_of_e4m3>, nullptr, nullptr, nullptr};
}

}  // namespace megamoe::cpu
#endif
