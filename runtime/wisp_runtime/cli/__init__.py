"""The ``wisp-runtime`` command: serve, convert, and what will follow."""
