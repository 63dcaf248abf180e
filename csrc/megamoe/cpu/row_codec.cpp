#include "megamoe/cpu/row_codec.h"

namespace megamoe::cpu {

const RowCodec& row_codec() {
  switch (current_isa()) {
#if defined(__x86_64__)
    case Isa::Avx2:
      return row_codec_avx2();
    case Isa::Avx512:
    case Isa::Avx512Bf16:
    case Isa::Amx:
      return row_codec_avx512();
#endif
    default:
      return row_codec_portable();
  }
}

}  // namespace megamoe::cpu
