"""Other programs on the same GPU, for comparison."""
