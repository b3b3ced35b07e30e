#!/usr/bin/env python3
"""Pass requests for `llama-server` on to a Wisp runtime: same flags, same paths where both have them.

Started by llama.cpp's tests in place of their binary, with any Python. It gets its runtime from `run.py`
(`WISP_RUNTIMES`) and changes two things of a request: paths that llama-server has with and without /v1 get
it, and `model`, which llama-server does not read, becomes the served name. `/health` is answered here.
Responses are passed on as they are; every other path is Wisp's to answer, with 404 where it has none.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flags import RuntimeSettings, parse

WITHOUT_V1 = ("/chat/completions", "/models", "/responses", "/messages")
HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive", "host", "content-length")
START_S, REQUEST_S = 300.0, 120.0


class Proxy(ThreadingHTTPServer):
    """The server: `upstream` is the address of the runtime, or of the gateway before it, once it is ready."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], settings: RuntimeSettings) -> None:
        super().__init__(address, Handler)
        self.settings = settings
        self.upstream: str | None = None
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        asked = urllib.request.Request(os.environ["WISP_RUNTIMES"], self.settings.as_json().encode())
        try:
            with urllib.request.urlopen(asked, timeout=START_S) as response:
                self.upstream = json.load(response)["address"]
        except OSError as error:
            print(f"no runtime for {self.settings}: {error}", file=sys.stderr)
            os._exit(1)


class Handler(BaseHTTPRequestHandler):
    """One request, passed on."""

    server: Proxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._health()
        else:
            self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    do_DELETE = do_OPTIONS = do_POST

    def _health(self) -> None:
        body = json.dumps({"status": "ok" if self.server.upstream else "starting"}).encode()
        self.send_response(200 if self.server.upstream else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        target = f"/v1{self.path}" if path in WITHOUT_V1 else self.path
        body = self._body()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream = http.client.HTTPConnection(self.server.upstream or "", timeout=REQUEST_S)
        try:
            upstream.request(self.command, target, body=body, headers=headers)
            self._answer(upstream.getresponse())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client left
        finally:
            upstream.close()

    def _body(self) -> bytes | None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        try:
            fields = json.loads(body or b"null")
        except ValueError:
            return body
        if not isinstance(fields, dict):
            return body
        return json.dumps({**fields, "model": self.server.settings.names[0]}).encode()

    def _answer(self, response: http.client.HTTPResponse) -> None:
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        self.end_headers()
        while chunk := response.read1(65536):
            self.wfile.write(chunk)
            self.wfile.flush()


def main() -> None:
    """Serve until the tests end this process."""
    flags, settings = parse(sys.argv[1:])
    Proxy((flags.host or "127.0.0.1", int(flags.port or 8080)), settings).serve_forever()


if __name__ == "__main__":
    main()
