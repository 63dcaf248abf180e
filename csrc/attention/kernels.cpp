#include "attention/kernels.h"

namespace attention {

const Kernels& kernels_of(megamoe::cpu::Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case megamoe::cpu::Isa::Avx2:
      return kernels_avx2();
    case megamoe::cpu::Isa::Avx512:
    case megamoe::cpu::Isa::Avx512Bf16:
    case megamoe::cpu::Isa::Amx:
      return kernels_avx512();
#endif
    default:
      return kernels_portable();
  }
}

}  // namespace attention
