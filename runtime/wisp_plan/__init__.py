"""What a model is and what it needs in memory: pure, shared by operator and runtime."""
