"""Control plane: an InferenceModel in, cluster objects or local processes out."""
