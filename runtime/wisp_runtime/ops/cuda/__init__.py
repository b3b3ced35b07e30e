"""The ops on an NVIDIA GPU: CuPy's arrays, our own kernels, no compiler.

Importing this package loads neither CuPy nor a driver, so that kernels can be listed and compiled on a
machine without a GPU.
"""
