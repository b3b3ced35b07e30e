"""Requests to the API server: reads, writes, and the kinds they are about."""
