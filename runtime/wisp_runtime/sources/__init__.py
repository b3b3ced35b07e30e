"""Sources of models: folders, hubs, buckets, and the cache on disk."""
