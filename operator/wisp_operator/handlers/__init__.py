"""What happens when the cluster changes: kopf's events in, looks at models out."""
