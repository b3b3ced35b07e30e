"""Quantized KV cache of a GPU: rows stored, read back, and rotated."""
