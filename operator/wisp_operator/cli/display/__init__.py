"""Tables and text that the commands print."""
