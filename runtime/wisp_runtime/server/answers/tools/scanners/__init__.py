"""Incremental scanners from which the parsers of tool markups are made: text, JSON and Python."""
