"""The ``wisp`` command: up, fit, doctor, get, chat."""
