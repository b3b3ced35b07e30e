"""Limits of API keys: requests and tokens a minute, requests at once, bytes of a body."""
