# The attention side: kernels, then bindings. Every file of a higher instruction-set level switches
# its instructions on by itself (megamoe/cpu/isa.h).
list(APPEND AFD_CORE_SOURCES
  csrc/attention/kernels.cpp
  csrc/attention/kernels_portable.cpp
  csrc/attention/kernels_avx2.cpp
  csrc/attention/kernels_avx512.cpp
  csrc/attention/kv_cache.cpp
  csrc/attention/linear.cpp
  csrc/attention/paged_attention.cpp
  csrc/attention/route.cpp
  csrc/attention/sample.cpp)
list(APPEND AFD_PYTHON_SOURCES
  csrc/attention/python.cpp
  csrc/attention/python_weights.cpp)
