"""Runners of planned steps, on the CPU and on a device."""
