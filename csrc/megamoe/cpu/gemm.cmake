# The GEMM. Every file of a higher level switches its instruction set on by itself (isa.h).
list(APPEND AFD_CORE_SOURCES
  csrc/megamoe/cpu/gemm_isa.cpp
  csrc/megamoe/cpu/gemm_packed.cpp
  csrc/megamoe/cpu/gemm_portable.cpp
  csrc/megamoe/cpu/gemm_avx2.cpp
  csrc/megamoe/cpu/gemm_avx512.cpp
  csrc/megamoe/cpu/gemm_avx512bf16.cpp
  csrc/megamoe/cpu/gemm_amx.cpp
  csrc/megamoe/cpu/amx_check.cpp)
