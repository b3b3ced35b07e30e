"""Answers of a model, split into text, thinking and tool calls. Pure: no I/O, one parser a choice."""
