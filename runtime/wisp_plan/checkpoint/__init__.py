"""Checkpoint files: safetensors headers, the index over them, a directory on disk."""
