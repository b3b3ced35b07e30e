"""CUDA context, memory, kernel catalogue, compilation and launches."""
