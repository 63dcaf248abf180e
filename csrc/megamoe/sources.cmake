list(APPEND AFD_CORE_SOURCES csrc/megamoe/cpu/mapping.cpp)
list(APPEND AFD_PYTHON_SOURCES csrc/megamoe/python.cpp)
