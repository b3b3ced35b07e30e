"""Prompts reduced to vectors and scores: the model's own way of pooling, tokens, and runs on the engine."""
