"""Limits of API keys (requests and tokens a minute, requests at once, body bytes); deadlines of requests."""
