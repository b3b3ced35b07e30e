"""State of the cluster: watches, caches, nodes, pods, and the history of one model."""
