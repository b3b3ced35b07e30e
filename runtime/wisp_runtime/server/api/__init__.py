"""Endpoints of the OpenAI API: chat, completions, their responses and errors."""
