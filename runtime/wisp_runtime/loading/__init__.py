"""Checkpoints: finding, downloading, reading them into the weights a model asks for."""

from wisp_runtime.loading.checkpoint import load_model, open_checkpoint, random_model, read_spec
from wisp_runtime.loading.resolve import resolve

__all__ = ["load_model", "open_checkpoint", "random_model", "read_spec", "resolve"]
