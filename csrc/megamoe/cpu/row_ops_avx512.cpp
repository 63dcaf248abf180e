#if defined(__x86_64__)
#include "megamoe/cpu/row_ops.h"
#include "megamoe/layout.h"

MEGAMOE_TARGET(MEGAMOE_AVX512_FEATURES)
#include "megamoe/numerics.h"
// The loops need the numerics.
#include "megamoe/cpu/row_loops.h"
MEGAMOE_TARGET_END

namespace megamoe::cpu {

const RowOps& row_ops_avx512() { return kRowOps; }

}  // namespace megamoe::cpu
#endif
