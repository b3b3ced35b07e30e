"""Sampling kernels."""
