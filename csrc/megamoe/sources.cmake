# The data plane on CPU, then its bindings.
set(AFD_ROW_CODEC
  csrc/megamoe/cpu/row_codec_portable.cpp
  csrc/megamoe/cpu/row_codec_avx2.cpp
  csrc/megamoe/cpu/row_codec_avx512.cpp)
# No fused multiply-add here: every instruction-set level must round the wire to the same bits.
# Without -fno-trapping-math GCC will not turn the codecs' selections into vector code.
set_source_files_properties(${AFD_ROW_CODEC} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off;-fno-trapping-math")
list(APPEND AFD_CORE_SOURCES
  ${AFD_ROW_CODEC}
  csrc/megamoe/cpu/row_codec.cpp
  csrc/megamoe/cpu/colocated.cpp
  csrc/megamoe/cpu/expert_bank.cpp
  csrc/megamoe/cpu/mapping.cpp
  csrc/megamoe/layout.cpp)
list(APPEND AFD_PYTHON_SOURCES
  csrc/megamoe/python.cpp
  csrc/megamoe/python_experts.cpp
  csrc/megamoe/python_memory.cpp
  csrc/megamoe/python_sides.cpp)
