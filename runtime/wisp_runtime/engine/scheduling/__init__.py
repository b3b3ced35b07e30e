"""Choice of the sequences of each step; pure."""
