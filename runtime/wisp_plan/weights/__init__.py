"""Weights of a model: declaration, required tensors, formats, layout in memory."""
