"""KV blocks, prefix cache, block tables."""
