"""Benchmarks behind `wisp-runtime bench` and `wisp-runtime profile`."""
