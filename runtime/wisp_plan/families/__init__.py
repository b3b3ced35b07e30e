"""Readers of `config.json`: a model family's keys and defaults into a `ModelSpec`."""
