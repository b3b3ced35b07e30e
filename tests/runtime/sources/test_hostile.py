"""Sources that lie: neither paths, nor memory, nor time of a process are theirs to decide."""

import hashlib
import json
import logging
import os
import socket
import threading
import time

import hub_server
import pytest
from fake_source import FILES, RANGE, WEIGHTS, Fake, content
from hub_server import Hub
from huggingface_hub import constants

from wisp_runtime.errors import ModelUnsupported, SourceUnreachable, WeightsUnreadable
from wisp_runtime.sources import transfer
from wisp_runtime.sources.hub import PUBLIC_HUB, HubSource
from wisp_runtime.sources.listing import MAX_FILES
from wisp_runtime.sources.lock import _read
from wisp_runtime.sources.manifest import MANIFEST_FILE, read_manifest
from wisp_runtime.sources.resolve import resolve
from wisp_runtime.sources.store import obtain, repair

REPO = "acme/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIBLINGS = [
    {"rfilename": "config.json", "size": 2, "blobId": COMMIT},
    {"rfilename": "model.safetensors", "size": 8, "lfs": {"sha256": "a" * 64}},
]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub({REPO: {"config.json": b"{}", "model.safetensors": b"good!!!!"}}) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield running


def answers(monkeypatch, status, body):
    """Let the hub answer every page with ``body``."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    monkeypatch.setattr(hub_server._Handler, "_page", lambda self, *_: self._answer(status, data, {}))


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def sibling(**changes):
    return [SIBLINGS[0], {**SIBLINGS[1], **changes}]


@pytest.mark.parametrize(
    "page",
    [
        {"sha": "../../../escaped", "siblings": SIBLINGS},
        {"sha": "/tmp/escaped", "siblings": SIBLINGS},
        {"sha": "refs", "siblings": SIBLINGS},
        {"sha": COMMIT[:39], "siblings": SIBLINGS},
        {"sha": COMMIT.upper(), "siblings": SIBLINGS},
        {"sha": COMMIT + "\n", "siblings": SIBLINGS},
        {"sha": None, "siblings": SIBLINGS},
        {"sha": [COMMIT], "siblings": SIBLINGS},
        {"siblings": SIBLINGS},
        {"sha": COMMIT, "siblings": 3},
        {"sha": COMMIT, "siblings": [3]},
        {"sha": COMMIT, "siblings": [{"size": 1}]},
        {"sha": COMMIT, "siblings": sibling(size=-1)},
        {"sha": COMMIT, "siblings": sibling(size="8")},
        {"sha": COMMIT, "siblings": sibling(size=10**400)},
        {"sha": COMMIT, "siblings": sibling(size=8.5)},
        {"sha": COMMIT, "siblings": sibling(size=True)},
        {"sha": COMMIT, "siblings": sibling(lfs={"sha256": "../x"})},
        {"sha": COMMIT, "siblings": sibling(lfs={"sha256": 7})},
        {"sha": COMMIT, "siblings": sibling(lfs=[1])},
        {"sha": COMMIT, "siblings": [*SIBLINGS, SIBLINGS[1]]},
        [],
        3,
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        b'{"sha": "' + COMMIT.encode() + b'", "siblings": [{"rfilename":"config.json","size":1e400}]}',
        b" " * (17 << 20),
    ],
)
def test_a_page_that_is_no_hubs_is_a_sentence_and_leaves_nothing_behind(hub, tmp_path, monkeypatch, page):
    answers(monkeypatch, 200, page)
    cache = tmp_path / "deep" / "in" / "cache"
    with pytest.raises(SourceUnreachable) as caught:
        resolve(f"hf://{REPO}", None, cache)
    assert len(caught.value.message) < 500
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "..\\\0.safetensors",
        "a\0.safetensors",
        "a\nb.safetensors",
        "x" * 300 + ".safetensors",
    ],
)
def test_a_name_that_is_no_file_of_a_model_is_not_fetched(hub, tmp_path, monkeypatch, name):
    answers(monkeypatch, 200, {"sha": COMMIT, "siblings": [{"rfilename": name, "size": 1, "blobId": COMMIT}]})
    assert HubSource(REPO, None).listing(3).files == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rfilename": "config.json", "size": 10**9}, "config.json"),
        ({"rfilename": "SHA256SUMS", "size": 10**9}, "SHA256SUMS"),
        ({"size": 10**18}, "model.safetensors"),  # 30 thousand million ranges, once held as a list
    ],
)
def test_a_size_that_no_model_has_is_refused_before_a_byte_or_a_range(
    hub, tmp_path, monkeypatch, changes, said
):
    answers(monkeypatch, 200, {"sha": COMMIT, "siblings": [{**SIBLINGS[1], **changes}]})
    began_s = time.process_time()
    with pytest.raises(ModelUnsupported, match=f"{said} of .* more than any model's"):
        resolve(f"hf://{REPO}", None, tmp_path)
    assert time.process_time() - began_s < 5


def test_a_model_of_too_many_files_is_refused(tmp_path):
    files = {f"{number}.safetensors": b"" for number in range(MAX_FILES)}
    with pytest.raises(ModelUnsupported, match=f"has {MAX_FILES + 1} files"):
        obtain(Fake({"config.json": b"{}", **files}), tmp_path)


@pytest.mark.parametrize("status", [403, 404, 500])
@pytest.mark.parametrize(
    "body", [b"[]", b'{"error": {"a": 1}}', b'{"error": [[3]]}', b"x" * (1 << 20), b"\xff"]
)
def test_a_refusal_with_an_odd_body_is_a_failure_with_a_reason(hub, tmp_path, monkeypatch, status, body):
    from wisp_runtime.errors import RuntimeFailure

    answers(monkeypatch, status, body)
    with pytest.raises(RuntimeFailure) as caught:
        resolve(f"hf://{REPO}", None, tmp_path)
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize("revision", ["../../escaped", "refs", "r1.lock", ".", "", "A" * 40, "a/b", 3])
def test_a_revision_that_is_no_folders_name_is_refused_of_any_source(tmp_path, revision):
    with pytest.raises(SourceUnreachable, match="list of files that is none"):
        obtain(Fake(revision=revision), tmp_path / "cache")
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("known", ["../../../elsewhere", "refs", "\0", "r1\nr2", "x" * 10_000_000])
def test_a_reference_in_the_cache_leads_out_of_it_nowhere(tmp_path, known):
    refs = tmp_path / "cache" / "weights" / "hf--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(known)
    (tmp_path / "elsewhere").mkdir()
    source = Fake()
    source.is_away = True
    with pytest.raises(SourceUnreachable, match="nobody answers"):
        obtain(source, tmp_path / "cache")


def manifest(**files):
    return {"uri": "hf://org/name", "revision": "r1", "files": files}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(manifest(**{"../../victim": {"size": 1, "digest": "sha256:0"}})),
        json.dumps(manifest(**{"/etc/passwd": {"size": 1, "digest": "sha256:0"}})),
        json.dumps(manifest(**{"config.json": {"size": "1", "digest": ""}})),
        json.dumps(manifest(**{"config.json": {"size": -1, "digest": ""}})),
        json.dumps(manifest(**{"config.json": {"size": 1, "digest": 7}})),
        json.dumps(manifest(**{"config.json": 7})),
        "[" * 100_000,
        "[]",
        " " * (5 << 20) + "{}",
    ],
)
def test_a_manifest_that_is_none_names_no_file_and_deletes_none(tmp_path, text):
    folder = obtain(Fake(pinned="r1"), tmp_path / "cache")
    victim = folder.parents[1] / "victim"
    victim.write_text("x")
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(WeightsUnreadable, match="cannot be read"):
        read_manifest(folder)
    assert content(repair(Fake(pinned="r1"), tmp_path / "cache")) == FILES
    assert victim.read_text() == "x"


def test_a_lock_record_that_is_none_is_no_holder(tmp_path):
    good = {"host": "a\nb", "pid": 1, "since": 1.0, "done_bytes": 0, "total_bytes": 0, "checked_bytes": 0}
    for record in (b"{}", b"[]", b"\xff", b"[" * 512, json.dumps({**good, "since": "x"}).encode()):
        (tmp_path / "lock").write_bytes(record)
        with (tmp_path / "lock").open("rb") as file:
            assert _read(file) is None
    (tmp_path / "lock").write_text(json.dumps(good))
    with (tmp_path / "lock").open("rb") as file:
        assert str(_read(file)).startswith("process 1 on ab (for")


def test_a_hubs_sum_outranks_a_stale_list_of_the_repository(hub, tmp_path, caplog):
    """A SHA256SUMS of former weights made a model unloadable for ever."""
    hub.repositories[REPO]["SHA256SUMS"] = b"0" * 64 + b"  model.safetensors\n"
    with caplog.at_level(logging.WARNING):
        folder = resolve(f"hf://{REPO}", None, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == b"good!!!!"
    assert "differs from SHA256SUMS, which is stale" in caplog.text


def test_a_list_of_the_repository_does_not_outrank_a_hubs_sum(tmp_path):
    files = {**FILES, "model.safetensors": WEIGHTS}
    forged = hashlib.sha256(WEIGHTS).hexdigest()
    files["SHA256SUMS"] = f"{forged}  model.safetensors\n".encode()
    source = Fake(files)
    source.digests["model.safetensors"] = "sha256:" + "1" * 64
    with pytest.raises(WeightsUnreadable, match=r"model\.safetensors .* other digests"):
        obtain(source, tmp_path)


def test_a_bucket_without_sums_is_checked_by_its_own_list(tmp_path):
    files = {**FILES, "SHA256SUMS": b"0" * 64 + b"  model.safetensors\n"}
    source = Fake(files)
    source.digests = dict.fromkeys(files, "")
    with pytest.raises(WeightsUnreadable, match=r"model\.safetensors"):
        obtain(source, tmp_path)


def test_copies_of_one_hub_do_not_serve_for_another(monkeypatch, tmp_path):
    """A tenant's own hub named the real commit and sent other bytes; the next tenant's start used them."""
    folders, keys = [], set()
    for weights in (b"EVILEVIL", b"good!!!!"):
        with Hub({REPO: {"config.json": b"{}", "model.safetensors": weights}}) as running:
            monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
            monkeypatch.setattr(Hub, "commit", lambda *_: COMMIT)
            folders.append(resolve(f"hf://{REPO}", COMMIT, tmp_path))
            keys.add(HubSource(REPO, None).cache_key)
    assert [(folder / "model.safetensors").read_bytes() for folder in folders] == [b"EVILEVIL", b"good!!!!"]
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        (PUBLIC_HUB, "hf--acme--tiny"),  # copies of earlier versions go on serving
        (PUBLIC_HUB + "/", "hf--acme--tiny"),
        ("https://user:secret@hub.example.com/x/", "hf--acme--tiny--at-hub.example.com-"),
        ("http://huggingface.co", "hf--acme--tiny--at-huggingface.co-"),
        ("https://" + "../" * 50, "hf--acme--tiny--at-..-"),
    ],
)
def test_the_key_of_a_copy_names_the_hub_and_none_of_its_secrets(monkeypatch, endpoint, key):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    made = HubSource(REPO, None).cache_key
    assert made.startswith(key)
    assert "secret" not in made
    assert "/" not in made
    assert len(made) < 100


def test_a_source_that_trickles_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)
    monkeypatch.setattr(transfer, "_RATE_WINDOW_S", 0.05)
    monkeypatch.setattr(transfer, "_MIN_BYTES_PER_S", 100_000)

    class Trickle(Fake):
        def read(self, file, start, stop):
            for at in range(start, stop):
                time.sleep(0.02)
                yield self.files[file.name][at : at + 1]

    with pytest.raises(SourceUnreachable, match="sends less than 100000 bytes a second"):
        obtain(Trickle(), tmp_path)


def test_a_page_that_trickles_is_given_up(monkeypatch, tmp_path):
    server, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b" ")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
    with pytest.raises(SourceUnreachable, match="without end, or too slowly"):
        HubSource(REPO, None).listing(0.3)
    ended.set()
    server.close()


def test_more_bytes_than_listed_are_cut(tmp_path, hub, monkeypatch):
    """The storage goes on after the last byte that the hub listed."""
    listed = dict(hub.repositories[REPO])

    class Longer(dict):
        def __getitem__(self, name):
            return listed[name] + (os.urandom(1 << 20) if name == "model.safetensors" else b"")

        def items(self):
            return listed.items()

    monkeypatch.setattr(hub, "takes_ranges", False)
    monkeypatch.setattr(Hub, "commit", lambda *_: COMMIT)
    hub.repositories[REPO] = Longer(listed)
    assert content(resolve(f"hf://{REPO}", None, tmp_path)) == listed
