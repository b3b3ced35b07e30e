"""Markup in which models write tool calls: a file a family, its parser and its grammar."""
