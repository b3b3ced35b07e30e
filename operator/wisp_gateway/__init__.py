"""Front door: authenticates, holds, wakes, routes and streams OpenAI requests."""
