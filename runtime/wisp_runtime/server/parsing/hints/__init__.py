"""Remedies for bodies that are written as for another API, and the sentences of validation errors."""
