"""Dimensions of a model, as frozen dataclasses."""
