"""Bound on the log-probabilities that a client may request beside those of sampled tokens."""

MAX_ALTERNATIVES = 20
"""Alternatives to a token that a client may request, as OpenAI's may; a step that reports any reports all."""
