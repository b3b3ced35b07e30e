"""Other checkpoint formats in, safetensors out."""
