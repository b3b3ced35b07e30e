"""Open-loop load on any OpenAI server: arrivals that do not wait for earlier answers."""
