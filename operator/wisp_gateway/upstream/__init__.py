"""Pod side: connections, proxy with retries, readiness probes."""
