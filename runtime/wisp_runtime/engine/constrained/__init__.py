"""Constraints on the tokens of an answer: grammars, and other rules on the next token."""
