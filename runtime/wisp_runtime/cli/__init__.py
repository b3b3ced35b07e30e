"""Commands of ``wisp-runtime``."""
