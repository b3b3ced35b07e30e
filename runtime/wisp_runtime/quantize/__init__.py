"""Quantization of a 16-bit checkpoint into a compressed-tensors one (``wisp-runtime quantize``)."""
