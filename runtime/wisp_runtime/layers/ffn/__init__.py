"""Feed-forward blocks: the gated MLP, mixtures of experts."""
