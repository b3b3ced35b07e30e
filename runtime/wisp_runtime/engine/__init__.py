"""Continuous batching: which tokens run in the next step, and what came of them."""
