"""Bounded HTTP input, shared by gateway and runtime: a leaf that imports neither.

- :mod:`.base_url`: the base URL that a client with an unknown path should be set to
- :mod:`.json_scan`: bounds on a JSON body before it is parsed; positions of its top-level fields
- :mod:`.protocol`: uvicorn's HTTP/1.1 protocol with limits on bytes, time and unread answers (:mod:`.limits`)
"""
