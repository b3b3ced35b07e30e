"""One HTTP request from inside the cluster, line by line: `python3 ask.py METHOD URL [JSON [KEY]]` in a pod.

Prints JSON lines: first the status and the headers, then each line of the answer with the seconds since the
request went out.
"""

import http.client
import json
import sys
import time
from urllib.parse import urlsplit


def ask(method, url, body="", key=""):
    """Send it, and print the answer as it comes."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=300)
    headers = {"Content-Type": "application/json"} if body else {}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    began = time.monotonic()
    connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body or None, headers)
    answer = connection.getresponse()
    say(
        {"status": answer.status, "headers": {key.lower(): value for key, value in answer.getheaders()}},
        began,
    )
    while line := answer.readline():
        say({"line": line.decode().rstrip("\n")}, began)


def say(what, began):
    print(json.dumps({"at": round(time.monotonic() - began, 3), **what}), flush=True)


if __name__ == "__main__":
    ask(*sys.argv[1:])
