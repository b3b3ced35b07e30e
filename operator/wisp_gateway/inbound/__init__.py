"""Client side: HTTP server, request and body, paths, API keys, server-sent events."""
