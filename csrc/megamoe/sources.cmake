# The data plane on CPU, then its bindings.
set(AFD_ROW_OPS
  csrc/megamoe/cpu/row_ops_portable.cpp
  csrc/megamoe/cpu/row_ops_avx2.cpp
  csrc/megamoe/cpu/row_ops_avx512.cpp)
# No fused multiply-add here: every instruction-set level must round the wire to the same bits.
# Without -fno-trapping-math GCC will not turn the codecs' selections into vector code.
set_source_files_properties(${AFD_ROW_OPS} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off;-fno-trapping-math")
list(APPEND AFD_CORE_SOURCES
  ${AFD_ROW_OPS}
  csrc/megamoe/cpu/row_ops.cpp
  csrc/megamoe/cpu/mapping.cpp
  csrc/megamoe/cpu/wait.cpp)
list(APPEND AFD_PYTHON_SOURCES csrc/megamoe/python.cpp)
