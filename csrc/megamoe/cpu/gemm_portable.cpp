#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/simd_portable.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"

// The vectors' alternative to these loops is one header per instruction set.
#include "megamoe/cpu/fp8_portable.h"

namespace megamoe::cpu {

GemmKernels gemm_portable() {
  return {gemm<Fp32Step>, gemm<Bf16Step>, gemm_fp8<bf16_of_e4m3>, nullptr, nullptr, nullptr};
}

}  // namespace megamoe::cpu
