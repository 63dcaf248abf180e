# The SIMT kernels compiled by nvcc, with entry.h's interface. Nothing links against the object; it is
# loaded. The tests build the same sources over the CPU runner (tests/megamoe/programs.cmake).
if(AFD_CUDA)
  find_program(AFD_NVCC nvcc REQUIRED DOC "The CUDA compiler, of a toolkit or of its pip packages")
  set(AFD_CUDA_ARCHITECTURES "90a;100a" CACHE STRING "GPU architectures to compile the kernels for")
  get_filename_component(AFD_NVCC_LIBRARIES "${AFD_NVCC}/../../lib" ABSOLUTE)  # pip's place
  set(AFD_GENCODE)
  foreach(arch IN LISTS AFD_CUDA_ARCHITECTURES)
    list(APPEND AFD_GENCODE -gencode "arch=compute_${arch},code=sm_${arch}")
  endforeach()
  file(GLOB AFD_SIMT_HEADERS CONFIGURE_DEPENDS csrc/megamoe/*.h csrc/megamoe/simt/*.h)
  # No contraction: the wire rounds to the same bits as on the CPU. The static runtime looks for the
  # driver when it is first called, so the object loads where there is none.
  add_custom_command(
    OUTPUT libmegamoe-simt-cuda.so
    COMMAND ${AFD_NVCC} -std=c++20 -O3 -fmad=false -Werror all-warnings -shared --no-compress
      -cudart static -cudadevrt none -L ${AFD_NVCC_LIBRARIES} ${AFD_GENCODE} -Xcompiler -fPIC,-fvisibility=hidden -I ${CMAKE_SOURCE_DIR}/csrc
      ${CMAKE_SOURCE_DIR}/csrc/megamoe/simt/entry.cu ${CMAKE_SOURCE_DIR}/csrc/megamoe/layout.cpp
      -o libmegamoe-simt-cuda.so
    DEPENDS csrc/megamoe/simt/entry.cu csrc/megamoe/layout.cpp ${AFD_SIMT_HEADERS}
    COMMENT "Compiling the SIMT kernels for ${AFD_CUDA_ARCHITECTURES}"
    VERBATIM)
  add_custom_target(megamoe-simt-cuda ALL DEPENDS libmegamoe-simt-cuda.so)
endif()
