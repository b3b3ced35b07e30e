"""OpenAI gateway: authenticates, queues, wakes, routes and streams requests."""
