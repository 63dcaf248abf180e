#include "megamoe/cpu/row_ops.h"

namespace megamoe::cpu {

const RowOps& row_ops() {
  switch (current_isa()) {
#if defined(__x86_64__)
    case Isa::Avx2:
      return row_ops_avx2();
    case Isa::Avx512:
    case Isa::Avx512Bf16:
      return row_ops_avx512();
#endif
    default:
      return row_ops_portable();
  }
}

}  // namespace megamoe::cpu
