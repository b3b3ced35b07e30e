"""Weights of a device: memory for them, upload into it, and the order of their rows."""
