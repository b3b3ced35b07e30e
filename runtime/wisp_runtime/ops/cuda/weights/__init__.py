"""Upload and tiling of weights on a GPU."""
