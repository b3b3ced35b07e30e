"""Quantized checkpoints: the scheme of each layer, as a ``quantization_config`` describes it."""
