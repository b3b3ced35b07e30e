"""This machine: GPUs, memory, ports, model paths."""
