"""Service discovery: snapshots of models and endpoints, from a file or a cluster's API server."""
