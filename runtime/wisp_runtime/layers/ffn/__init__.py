"""Feed-forward blocks: the gated MLP."""
