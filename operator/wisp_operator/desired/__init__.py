"""Pure builders of cluster objects, one file a kind: a model in, a manifest out."""
