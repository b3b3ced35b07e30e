"""Per-model state, request queues and load balancing."""
