"""Rules shared by both clusters: what was observed of a model in, its pods and its status out."""
