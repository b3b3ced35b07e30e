"""Parts of a runtime pod: its command line, environment, volumes, resources and placement."""
