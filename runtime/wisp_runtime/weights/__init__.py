"""Weights of a model: arena, plan of the reads, reading, dequantization."""
