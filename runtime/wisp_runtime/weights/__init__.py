"""Weights of a model in one arena, and the threads that read them."""
