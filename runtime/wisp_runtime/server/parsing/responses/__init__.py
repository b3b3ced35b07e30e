"""The body of ``/v1/responses``: its fields, items and tools."""
