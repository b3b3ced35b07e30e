"""The operator on Kubernetes: watches, looks at models one at a time, applies what they need."""
