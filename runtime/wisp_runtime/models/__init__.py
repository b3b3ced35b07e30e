"""One file a model family: which layers, in which order, with which weights."""
