"""Downloads, from a server on this machine that speaks as much of a hub's API as the library asks for."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from wisp_runtime.errors import DiskFull, ModelNotFound
from wisp_runtime.loading import hub, resolve

COMMIT = "c0ffee" + "0" * 34
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": bytes(range(256)) * 40_000,  # 10 MB: several pieces of progress
    "pytorch_model.bin": b"not wanted",
    "onnx/model.safetensors": b"not wanted either",
    "consolidated.safetensors": b"the same weights once more",
}


class Hub(ThreadingHTTPServer):
    """A hub with one repository, ``org/tiny``; it notes what was asked and may break off."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, str]] = []
        self.tokens: set[str | None] = set()
        self.requires_token = ""
        self.breaks_off_at = 0
        self.fails_at = ""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.tokens.add(token)
        if hub.requires_token and token != hub.requires_token:
            return self.fail(401, "GatedRepo")
        if hub.fails_at and self.command == "GET" and path.endswith(hub.fails_at):
            return self.fail(500, "")
        if not path.startswith(("/api/models/org/tiny", "/org/tiny/")):
            return self.fail(404, "RepoNotFound")
        if path.startswith("/api/models/org/tiny/tree/"):
            return self.send_json([self.entry(name) for name in FILES])
        if path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
            siblings = [{"rfilename": name} for name in FILES]
            return self.send_json({"_id": "1", "id": "org/tiny", "sha": COMMIT, "siblings": siblings})
        if path.startswith("/org/tiny/resolve/"):
            return self.send_file(path.split("/", 5)[5])
        return self.fail(404, "RevisionNotFound")

    def entry(self, name):
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": self.etag(name)}

    def etag(self, name):
        return hashlib.sha256(FILES[name]).hexdigest()

    def send_json(self, content):
        self.send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def send_file(self, name):
        content, status, headers = FILES[name], 200, {"ETag": f'"{self.etag(name)}"', "X-Repo-Commit": COMMIT}
        if self.headers.get("Range", "").startswith("bytes="):
            start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        cut = self.server.breaks_off_at
        self.send(status, content, headers, cut if cut and len(content) > cut else None)

    def send(self, status, content, headers, cut=None):
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])
        if cut:
            self.close_connection = True

    def fail(self, status, code):
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A hub that the library takes for the real one."""
    hub_server = Hub()
    threading.Thread(target=hub_server.serve_forever, daemon=True).start()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)
    template = hub_server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub_server
    hub_server.shutdown()
    hub_server.server_close()


def test_a_model_arrives_with_progress_and_without_what_is_not_needed(server, tmp_path):
    seen = []
    folder = resolve("hf://org/tiny", None, tmp_path, lambda *now: seen.append(now))
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    total = sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors"))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_is_there_is_not_fetched_again_and_serves_without_the_hub(server, tmp_path, monkeypatch):
    first = resolve("hf://org/tiny@main", None, tmp_path)
    server.asked.clear()
    assert resolve("hf://org/tiny", "main", tmp_path) == first
    assert not [path for method, path, _ in server.asked if method == "GET" and "/resolve/" in path]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert resolve("hf://org/tiny", None, tmp_path) == first


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1_000_000)
    server.breaks_off_at = 4_000_000
    folder = resolve("hf://org/tiny", None, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [wanted for _, path, wanted in server.asked if path.endswith("/model.safetensors") and wanted]
    assert ranges == ["bytes=4000000-", "bytes=8000000-"]


def test_after_a_failure_the_files_that_were_whole_are_not_fetched_again(server, tmp_path):
    server.fails_at = "model.safetensors"
    with pytest.raises(ModelNotFound, match="Whole files are kept; start again to go on"):
        resolve("hf://org/tiny", None, tmp_path)
    server.fails_at, server.asked = "", []
    resolve("hf://org/tiny", None, tmp_path)
    fetched = [path.rpartition("/")[2] for method, path, _ in server.asked if method == "GET"]
    assert "model.safetensors" in fetched
    assert "config.json" not in fetched


def test_the_token_of_the_environment_opens_a_gated_model(server, tmp_path, monkeypatch):
    server.requires_token = "hf_secret"
    with pytest.raises(ModelNotFound, match=r"gated: accept its terms at .*org/tiny, then set HF_TOKEN"):
        resolve("hf://org/tiny", None, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert (resolve("hf://org/tiny", None, tmp_path) / "config.json").exists()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://org/absent", "not at .* or it is private"),
        ("hf://org/tiny@v9", "no revision 'v9'"),
        ("hf://a/b/c", "write hf://ORG/NAME"),
    ],
)
def test_what_is_not_on_the_hub_is_said_plainly(server, tmp_path, uri, says):
    with pytest.raises(ModelNotFound, match=says):
        resolve(uri, None, tmp_path)


def test_no_connection_and_no_copy_names_the_endpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match=r"could not be downloaded from http://127\.0\.0\.1:9"):
        resolve("hf://org/tiny", None, tmp_path)


def test_a_disk_without_room_is_noticed_before_the_weights_are_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1 << 20))
    with pytest.raises(DiskFull, match=r"downloading hf://org/tiny needs 7\d\.\d MiB .* 1\.0 MiB free"):
        resolve("hf://org/tiny", None, tmp_path)
    assert not [path for method, path, _ in server.asked if method == "GET" and "/resolve/" in path]


def test_the_names_of_needed_files_are_those_that_loading_reads():
    assert {"config.json", "tokenizer.json", "*.safetensors", "model.safetensors.index.json"} < set(
        hub.NEEDED_FILES
    )
    assert Path("x/y.safetensors").match(hub._UNNEEDED_FILES[0])
