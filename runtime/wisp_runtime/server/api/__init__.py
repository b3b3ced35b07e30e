"""Endpoints of the OpenAI API: chat, completions, their answers and errors."""
