// A dense layer on a pool.
#pragma once

#include "attention/rows.h"
#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/pool.h"

namespace attention {

// out[n, rows] (+)= x[n, cols] W^T; the shapes must agree.
void linear(megamoe::cpu::Pool& pool, const Rows<const float>& x,
            const megamoe::cpu::PackedMatrix& weight, const Rows<float>& out, bool accumulate);

}  // namespace attention
