"""Structured output: fields of requests, the grammars that they mean, and their checks."""
