"""Embedding, norms, row gathers."""
