"""Readers of `config.json`: one model family's keys and defaults into a `ModelSpec`."""
