"""Buffers of a step, each declared once: ops allocate what the ledger counts."""
