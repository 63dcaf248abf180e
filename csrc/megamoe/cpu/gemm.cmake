# Lists the GEMM: list(APPEND AFD_CORE_SOURCES ...) and afd_isa_sources("-march=..." FILES...).
