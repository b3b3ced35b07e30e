"""Service discovery: models and their endpoints from a file or from a cluster's API server."""
