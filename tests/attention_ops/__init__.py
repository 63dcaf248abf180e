"""The CPU kernels against float64 references, at every instruction-set level of the machine."""
