#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/kernels.h"
#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/isa.h"
#include "megamoe/cpu/scratch.h"

MEGAMOE_TARGET(MEGAMOE_AVX2_FEATURES)
#include "megamoe/cpu/simd_avx2.h"
// The kernels need the vectors above.
#include "attention/vector_math.h"
// The rest needs the mathematics.
#include "attention/row_kernels.h"
#include "attention/sweep_tiles.h"
// The loop needs the tiles.
#include "attention/sweep_kernel.h"
MEGAMOE_TARGET_END

namespace attention {

const Kernels& kernels_avx2() {
  static const Kernels table{rms_norm, add_rms_norm, rope,    silu_mul, sigmoid_row, max_row,
                             find,     at_least,     exp_sum, mix,      sweep};
  return table;
}

}  // namespace attention
#endif
