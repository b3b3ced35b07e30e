"""Pre-flight: does a model fit a device, with which settings, and what would make it fit."""
