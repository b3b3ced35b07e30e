"""Request bodies, checked and turned into sampling parameters."""
