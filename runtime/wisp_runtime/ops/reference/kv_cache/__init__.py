"""Quantized keys and values, exactly defined in NumPy: kernels are compared with it, and the CPU runs it."""
