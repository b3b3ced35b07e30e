"""The Responses API: a conversation kept by the server, its answer as typed items and events."""
