"""Batch sizes of the persistent decode kernel. Imports nothing: the image stage that compiles reads it."""

BATCH_SIZES = (8, 16, 32, 64)
"""Sequences that the kernel's variants take."""

MIN_EQUAL_QUANTIZED = 32
"""Smallest variant in deterministic mode with quantized weights: smaller ones add K in another order."""
