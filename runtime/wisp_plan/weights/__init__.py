"""Weights of a model: required tensors, formats, layout in memory."""
