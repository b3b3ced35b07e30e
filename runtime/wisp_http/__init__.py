"""HTTP as gateway and runtime share it, a leaf that imports neither: bounded input, logs, traces.

- :mod:`.base_url`: the base URL that a client with an unknown path should be set to
- :mod:`.json_scan`: bounds on a JSON body before it is parsed; positions of its top-level fields
- :mod:`.log_lines`: lines of a log, in text or JSON, each with its request's id (:mod:`.request_ids`)
- :mod:`.protocol`: uvicorn's HTTP/1.1 protocol with limits on bytes, time and unread answers (:mod:`.limits`)
- :mod:`.tracing`: traces of requests, where an endpoint for them is set (:mod:`.spans`)
"""
