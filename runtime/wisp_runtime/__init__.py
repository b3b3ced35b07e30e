"""Data plane: OpenAI requests in, tokens out."""
