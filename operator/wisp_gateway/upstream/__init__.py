"""Pod side: connections, the proxy with its retries, readiness probes."""
