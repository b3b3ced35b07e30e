"""Where models come from: folders, hubs, buckets, and the cache on disk."""
