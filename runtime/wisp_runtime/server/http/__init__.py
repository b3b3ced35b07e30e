"""Web server, server-sent events, health endpoints."""
