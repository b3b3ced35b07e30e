#!/usr/bin/env python3
"""A runtime pod without a model: the HTTP API of docs/contracts.md, controlled by FAKE_* variables.

FAKE_READY_AFTER_S   seconds until /readyz is 200 (default 0)
FAKE_EXIT            exit with this code instead of serving
FAKE_REASON          with FAKE_EXIT: write this reason to the termination log
FAKE_CRASH_ONCE      path; exit 1 unless it exists, and create it
FAKE_TOKENS          words of an answer (default 3), FAKE_TOKEN_S seconds apart (default 0)
FAKE_ORPHAN          path; start a grandchild in a session of its own and write its pid there
FAKE_DEAF            ignore SIGTERM
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STARTED = time.monotonic()
ASKED = {name[5:]: value for name, value in os.environ.items() if name.startswith("FAKE_")}


def flag(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def is_ready():
    return time.monotonic() - STARTED >= float(ASKED.get("READY_AFTER_S", 0))


def state():
    status = "ready" if is_ready() else "loading"
    phases = [
        {"name": "import", "seconds": 0.1, "state": "done", "bytes": 0, "totalBytes": 0},
        {"name": "weights", "seconds": 0.1, "state": "running", "bytes": 40, "totalBytes": 100},
    ]
    load = {"waiting": 0, "running": 0, "tokensPerSecond": 12.5, "generatedTokensTotal": 7}
    return {"model": flag("--served-name"), "device": "cpu", "status": status, "phases": phases, "load": load}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/state" and not self.has_token():
            self.answer(401, {"error": {"message": "no token"}})
        elif self.path == "/readyz":
            self.answer(200 if is_ready() else 503, {"phase": "weights"})
        elif self.path == "/state":
            self.answer(200, state())
        elif self.path == "/pid":
            self.answer(200, {"pid": os.getpid(), "argv": sys.argv[1:], "environment": dict(os.environ)})
        else:
            self.answer(200, {})

    def has_token(self):
        """The gateway and ``wisp up`` send one wherever the environment has digests."""
        digests = os.environ.get("WISP_POD_TOKEN_SHA256", "").split(",")
        token = self.headers.get("x-wisp-token", "")
        return digests == [""] or hashlib.sha256(token.encode()).hexdigest() in digests

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.has_token():
            self.answer(401, {"error": {"message": "no token"}})
            return
        if request.get("model") not in (flag("--served-name"), flag("--alias", flag("--served-name"))):
            self.answer(404, {"error": {"message": "another model", "code": "model_not_found"}})
            return
        words = [f"word{n} " for n in range(int(ASKED.get("TOKENS", 3)))]
        if not request.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            self.answer(200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}]})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for word in words:
            self.event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
            time.sleep(float(ASKED.get("TOKEN_S", 0)))
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, body):
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True


def main():
    if "ORPHAN" in ASKED:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(ASKED["ORPHAN"]).write_text(str(child.pid))
    once = Path(ASKED["CRASH_ONCE"]) if "CRASH_ONCE" in ASKED else None
    if once and not once.exists():
        once.touch()
        sys.exit("first run fails")
    if "EXIT" in ASKED:
        print("the last line it printed", flush=True)
        if "REASON" in ASKED:
            said = {"reason": ASKED["REASON"], "message": "needs 2 GiB, has 1 GiB", "details": {}}
            Path(flag("--termination-log")).write_text(json.dumps(said))
        sys.exit(int(ASKED["EXIT"]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "DEAF" in ASKED else lambda *_: os._exit(0))
    Server((flag("--host"), int(flag("--port"))), Handler).serve_forever()


main()
