"""Rules shared by both clusters: a model's observation in, its pods and its status out."""
