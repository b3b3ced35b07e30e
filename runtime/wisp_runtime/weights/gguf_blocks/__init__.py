"""Dequantization of GGUF's blocks: bytes to float32, with the same roundings as ggml's own reference."""
