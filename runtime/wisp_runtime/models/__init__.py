"""The decoder that runs any family, and its loading from a checkpoint."""
