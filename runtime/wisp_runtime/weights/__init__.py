"""Weights of a model: arena, plans of the reads, reading, dequantization."""
