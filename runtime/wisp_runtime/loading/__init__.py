"""Checkpoints: finding, downloading, reading them into the weights a model asks for."""
