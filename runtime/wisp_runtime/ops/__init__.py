"""One function an operation: the NumPy reference and, on a GPU, the kernel."""
