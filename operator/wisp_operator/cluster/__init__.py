"""The operator on Kubernetes: watch, reconcile one model at a time, apply its objects."""
