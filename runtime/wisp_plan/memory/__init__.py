"""Memory ledger of a served model, and the buffers it counts."""
