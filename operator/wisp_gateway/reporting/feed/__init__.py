"""Feed of pages: the models as they are now, samples, wakes and finished requests."""
