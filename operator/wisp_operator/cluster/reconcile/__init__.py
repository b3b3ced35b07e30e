"""One model's reconciliation: fit, drift, status writes, events."""
