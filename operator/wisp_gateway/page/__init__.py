"""The page that the gateway shows in a browser: its files, and the headers they are sent with."""
