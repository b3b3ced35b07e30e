"""A hub on the loopback that speaks the part of Hugging Face's API that downloads use.

    python hub_server.py ORG/NAME=FOLDER… [--host H] [--port N] [--token T] [--storage URL]

It prints its URL.

Weights are sent by a redirect to another host name, as the real hub does. Faults are attributes to set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """The server; ``with Hub() as hub`` runs it.

    Attributes:
        repositories: ``ORG/NAME`` → file name → bytes; changing them makes another commit.
        token: token that clients must send; empty: none.
        gated: repositories whose files need a token, though their page does not.
        cut_after_bytes: every answer of storage ends after so many, ``cuts`` times.
        bytes_per_s: speed of the storage; None: unlimited.
        takes_ranges: whether storage honours ``Range``.
        failing: status with which storage answers instead, ``failures`` times.
        sent: (file, first byte, bytes sent) of each answer of storage.
        storage_tokens: ``Authorization`` headers that reached storage; there should be none.
    """

    def __init__(self, repositories=None, *, token="", host="127.0.0.1", port=0):
        self.repositories = repositories or {}
        self.token, self.gated = token, set()
        self.cut_after_bytes, self.cuts = None, 0
        self.failing, self.failures = 503, 0
        self.bytes_per_s, self.takes_ranges = None, True
        self.sent, self.paths, self.storage_tokens = [], [], []
        self.lock = threading.Lock()
        handler = type("BoundHandler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer((host, port), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://{host}:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}" if host == "127.0.0.1" else self.endpoint

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def commit(self, repository):
        files = self.repositories[repository]
        content = b"".join(name.encode() + hashlib.sha256(files[name]).digest() for name in sorted(files))
        return hashlib.sha1(content).hexdigest()

    def fetched_bytes(self):
        return sum(count for _, _, count in self.sent)


def is_large(name):
    return name.endswith((".safetensors", ".bin"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.paths.append(path)
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._page(api[1], api[2] or "main")
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*file.groups())
        elif stored := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
            self._store(*stored.groups())
        else:
            self._refuse(404, "EntryNotFound", "no such page")

    def _page(self, repository, revision):
        if not self._may_see(repository, revision):
            return
        files = self.hub.repositories[repository]
        siblings = []
        for name, data in files.items():
            one = {"rfilename": name, "size": len(data), "blobId": git_digest(data)}
            if is_large(name):
                one["lfs"] = {
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "pointerSize": 134,
                }
            siblings.append(one)
        page = {"id": repository, "sha": self.hub.commit(repository), "siblings": siblings}
        self._answer(200, json.dumps(page).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repository, revision, name):
        if not self._may_see(repository, revision):
            return
        if repository in self.hub.gated and not self._has_token():
            self._refuse(401, "GatedRepo", "Access to this model is restricted.")
        elif name not in self.hub.repositories[repository]:
            self._refuse(404, "EntryNotFound", "no such file")
        elif is_large(name):
            self._answer(302, b"", {"Location": f"{self.hub.storage}/storage/{repository}/{name}"})
        else:
            self._send(name, self.hub.repositories[repository][name])

    def _store(self, repository, name):
        if "Authorization" in self.headers:
            self.hub.storage_tokens.append(self.headers["Authorization"])
        with self.hub.lock:
            fails = self.hub.failures > 0
            self.hub.failures -= fails
        if fails:
            self._answer(self.hub.failing, b"busy", {})
        else:
            self._send(name, self.hub.repositories[repository][name])

    def _send(self, name, data):
        start, stop, status, headers = 0, len(data), 200, {}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and self.hub.takes_ranges:
            start, stop, status = int(asked[1]), min(len(data), int(asked[2]) + 1), 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        body = data[start:stop]
        with self.hub.lock:
            cuts = self.hub.cuts > 0 and is_large(name) and len(body) > (self.hub.cut_after_bytes or 0)
            self.hub.cuts -= cuts
        kept = body[: self.hub.cut_after_bytes] if cuts else body
        self.hub.sent.append((name, start, len(kept)))
        self._answer(status, kept, headers, length=len(body), slowly=is_large(name))
        if cuts:
            self.close_connection = True

    def _may_see(self, repository, revision):
        if self.hub.token and not self._has_token():
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif repository not in self.hub.repositories:
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif revision not in ("main", self.hub.commit(repository)):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        else:
            return True
        return False

    def _has_token(self):
        return bool(self.hub.token) and self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _refuse(self, status, code, message):
        self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _answer(self, status, body, headers, length=None, slowly=False):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        count = max(1, self.hub.bytes_per_s // 20) if slowly and self.hub.bytes_per_s else max(1, len(body))
        try:
            for at in range(0, len(body), count):
                self.wfile.write(body[at : at + count])
                if count < len(body):
                    time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def read_folder(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", nargs="+", metavar="ORG/NAME=FOLDER")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument(
        "--storage", default="", metavar="URL", help="where clients reach this server's weights"
    )
    given = parser.parse_args()
    pairs = [pair.split("=", 1) for pair in given.repositories]
    served = {name: read_folder(folder) for name, folder in pairs}
    with Hub(served, token=given.token, host=given.host, port=given.port) as running:
        running.storage = given.storage or running.storage
        print(running.endpoint, flush=True)
        threading.Event().wait()
