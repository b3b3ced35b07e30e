"""Client side: the HTTP server, one request and its body, paths, API keys, server-sent events."""
