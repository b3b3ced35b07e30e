"""Mixtures of experts on the GPU: routing, GEMMs by expert, and their weighted sum."""
