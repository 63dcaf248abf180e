#if defined(__x86_64__)
// GCC 12 warns about the deliberately undefined operands of its own header (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/isa.h"

MEGAMOE_TARGET(MEGAMOE_AVX512_FEATURES)
#include "megamoe/cpu/simd_avx512.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"
MEGAMOE_TARGET_END

namespace megamoe::cpu {

GemmKernels gemm_avx512() { return {gemm<Fp32Step>, gemm<Bf16Step>, nullptr}; }

}  // namespace megamoe::cpu
#endif
