"""Bare names of models: what the rule of wisp_names grants one model, and its condition."""
