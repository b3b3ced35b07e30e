"""The ``wisp`` command: up, get, chat, fit, doctor, demo."""
