#if defined(__x86_64__)
#include <cstring>

#include "megamoe/cpu/intrinsics.h"
#include "megamoe/cpu/row_codec.h"
#include "megamoe/numerics.h"

MEGAMOE_TARGET(MEGAMOE_AVX2_FEATURES)
// In this order: each builds on the one before.
#include "megamoe/cpu/simd_avx2.h"
//
#include "attention/vector_math.h"
//
#include "megamoe/cpu/row_codec_loops.h"
MEGAMOE_TARGET_END

namespace megamoe::cpu {

const RowCodec& row_codec_avx2() { return kRowCodec; }

}  // namespace megamoe::cpu
#endif
