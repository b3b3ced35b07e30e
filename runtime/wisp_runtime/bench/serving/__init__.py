"""Measurements of a served model over HTTP, and of its start."""
