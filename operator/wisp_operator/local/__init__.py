"""A cluster of one machine: the pods of a manifest as local processes."""
