"""Subcommands of `wisp`, one module each."""
