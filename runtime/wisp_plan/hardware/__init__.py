"""GPUs and host memory."""
