"""State of the cluster: watches, caches, nodes, pods, and what is known of one model."""
