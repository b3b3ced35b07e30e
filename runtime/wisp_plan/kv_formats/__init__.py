"""Formats of keys and values in a paged cache: bytes of a token, scales, rotation."""
