"""A step taken apart: traces, kernel times, pictures."""
