"""Dequantization of GGUF's blocks: bytes to float32, with the same roundings as ggml's own reference.

A decoder takes ``blocks``, ``[n, bytes of a block]`` uint8, and returns :class:`.bits.ScaledCodes`. In
formulas q is a weight's code, v[q] its entry in a table; d and dmin are float16 numbers of the block; s and m
are scale and minimum of a part of it.
"""
