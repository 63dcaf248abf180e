#include <cstring>

#include "megamoe/cpu/row_codec.h"
#include "megamoe/numerics.h"

// In this order: each builds on the one before.
#include "megamoe/cpu/simd_portable.h"
//
#include "attention/vector_math.h"
//
#include "megamoe/cpu/row_codec_loops.h"

namespace megamoe::cpu {

const RowCodec& row_codec_portable() { return kRowCodec; }

}  // namespace megamoe::cpu
