# list(APPEND AFD_CORE_SOURCES ...) for kernels, list(APPEND AFD_PYTHON_SOURCES ...) for bindings.
