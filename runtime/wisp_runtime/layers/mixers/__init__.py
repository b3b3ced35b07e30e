"""Token mixers: attention."""
