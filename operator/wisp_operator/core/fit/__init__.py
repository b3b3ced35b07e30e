"""Verdict whether a model fits a device, reached in a child process."""
