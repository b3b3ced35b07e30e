"""One model's reconciliation: fit, names, refusals, ownership, drift, applies, status writes, events."""
