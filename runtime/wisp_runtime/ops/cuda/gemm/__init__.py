"""GEMM kernels and their tilings."""
