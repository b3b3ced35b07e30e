"""One function an operation: the NumPy twin and, on a GPU, the kernel."""
