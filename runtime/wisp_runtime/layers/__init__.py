"""The blocks that model families share."""
