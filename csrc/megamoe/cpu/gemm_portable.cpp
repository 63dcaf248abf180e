#include <cstddef>
#include <cstdint>

#include "megamoe/cpu/gemm_kernels.h"
#include "megamoe/cpu/simd_portable.h"
// The tiles need the vectors above.
#include "megamoe/cpu/gemm_tiles.h"

namespace megamoe::cpu {

GemmKernels gemm_portable() { return {gemm<Fp32Step>, gemm<Bf16Step>, nullptr}; }

}  // namespace megamoe::cpu
