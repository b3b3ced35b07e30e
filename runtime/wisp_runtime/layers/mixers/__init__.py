"""Token mixers: attention, recurrence."""
