"""Hybrids: decoders whose layers mix tokens by recurrence in one place, by attention in another."""
