"""Bare names of models: the rule, and its outcome for one model."""
