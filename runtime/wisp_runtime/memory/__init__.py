"""Arenas: KV blocks and weights, allocated once."""
