"""s3:// against a real S3 server (versitygw): what is fetched, with which keys, and every refusal."""

import hashlib
import os
import socket
import threading

import pytest
from bucket_server import running_buckets

from wisp_runtime.errors import (
    AccessDenied,
    ConfigError,
    ModelNotFound,
    SourceUnreachable,
    WeightsUnreadable,
)
from wisp_runtime.sources import transfer
from wisp_runtime.sources.manifest import MANIFEST_FILE
from wisp_runtime.sources.resolve import resolve
from wisp_runtime.sources.s3 import BucketSource
from wisp_runtime.sources.store import obtain

pytestmark = pytest.mark.timeout(900)  # the first run builds the server

RANGE = 1 << 20
WEIGHTS = os.urandom(6 * RANGE + 13)
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_buckets(tmp_path_factory.mktemp("s3"), "models") as running:
        running.put("models", "tiny", FILES | {"README.md": b"x", "original/model.safetensors": b"y"})
        running.put("models", "parts", FILES, part_bytes=5 << 20)
        running.put("models", "deep/er/model", FILES)
        yield running


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST_FILE}


@pytest.mark.parametrize("prefix", ["tiny", "tiny/", "parts", "deep/er/model"])
def test_a_prefix_becomes_a_folder_of_what_a_model_needs(server, tmp_path, prefix):
    moved = []
    source = BucketSource(f"models/{prefix}", server.settings)
    folder = obtain(source, tmp_path, lambda *progress: moved.append(progress))
    assert content(folder) == FILES
    assert moved[-1] == (len(WEIGHTS) + 4, len(WEIGHTS) + 4)


def test_the_environment_is_where_credentials_come_from(server, tmp_path, monkeypatch):
    for name, value in server.settings.items():
        monkeypatch.setenv(name, value)
    assert content(resolve("s3://models/tiny", None, tmp_path)) == FILES


def test_entity_tags_are_held_against_the_bytes(server, tmp_path, monkeypatch):
    source = BucketSource("models/tiny", server.settings)
    read = BucketSource.read

    def damaged(self, file, start, stop):
        for data in read(self, file, start, stop):
            yield bytes(len(data)) if file.name == "model.safetensors" else data

    monkeypatch.setattr(BucketSource, "read", damaged)
    with pytest.raises(WeightsUnreadable, match="s3://models/tiny arrived with other"):
        obtain(source, tmp_path)


def test_an_object_in_parts_is_checked_by_the_models_own_sums(server, tmp_path):
    wrong = f"{hashlib.sha256(b'else').hexdigest()}  model.safetensors\n".encode()
    server.put("models", "summed", FILES | {"SHA256SUMS": wrong}, part_bytes=5 << 20)
    with pytest.raises(WeightsUnreadable, match="s3://models/summed arrived with other"):
        obtain(BucketSource("models/summed", server.settings), tmp_path)


def test_objects_that_changed_are_another_revision(server, tmp_path):
    server.put("models", "moving", FILES)
    old = obtain(BucketSource("models/moving", server.settings), tmp_path)
    assert obtain(BucketSource("models/moving", server.settings), tmp_path) == old
    server.put("models", "moving", {"config.json": b"{ }"})
    new = obtain(BucketSource("models/moving", server.settings), tmp_path)
    assert content(new)["config.json"] == b"{ }"
    assert content(old)["config.json"] == b"{}"


def test_an_object_that_changes_while_it_is_fetched_is_never_mixed(server, tmp_path):
    server.put("models", "racing", FILES)
    source = BucketSource("models/racing", server.settings)
    listing = source.listing(5.0)
    source.listing = lambda _: listing
    server.put("models", "racing", {"model.safetensors": os.urandom(len(WEIGHTS))})
    with pytest.raises(WeightsUnreadable, match="was changed while it was fetched"):
        obtain(source, tmp_path)


def test_the_same_name_at_two_endpoints_is_two_models(server):
    here = BucketSource("models/tiny", server.settings)
    there = BucketSource("models/tiny", server.settings | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert here.cache_key != there.cache_key


def test_a_server_that_is_away_is_answered_with_the_copy(server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as relay:
        endpoint = f"http://127.0.0.1:{relay.getsockname()[1]}"
        threading.Thread(target=_relay, args=(relay, server.endpoint), daemon=True).start()
        source = BucketSource("models/tiny", server.settings | {"AWS_ENDPOINT_URL": endpoint})
        folder = obtain(source, tmp_path)
        relay.shutdown(socket.SHUT_RDWR)
    away = BucketSource("models/tiny", server.settings | {"AWS_ENDPOINT_URL": endpoint})
    assert obtain(away, tmp_path) == folder


def _relay(listener, endpoint):
    """Pass connections on to the server until the listener is shut."""
    port = int(endpoint.rsplit(":", 1)[1])
    while True:
        try:
            client = listener.accept()[0]
        except OSError:
            return
        server = socket.create_connection(("127.0.0.1", port))
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        one.close()


@pytest.mark.parametrize(
    ("location", "settings", "failure", "words"),
    [
        ("nothing/tiny", {}, ModelNotFound, "there is no bucket nothing at http"),
        ("models/nothing", {}, ModelNotFound, r"has no config.json and no \*.safetensors"),
        (
            "models/tiny",
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            AccessDenied,
            "SignatureDoesNotMatch.*spec.model.sec",
        ),
        ("models/tiny", {"AWS_ACCESS_KEY_ID": "nobody"}, AccessDenied, "refuses these credentials"),
        ("models/tiny", {"AWS_SKIP_SIGNATURE": "true"}, AccessDenied, "refuses these credentials"),
        ("models/tiny", {"AWS_REGION": "eu-west-9"}, AccessDenied, "in another region.*set AWS_REGION"),
        (
            "models/tiny",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            SourceUnreachable,
            "Check AWS_ENDPOINT_URL",
        ),
        (
            "models/tiny",
            {"AWS_ENDPOINT_URL": "minio:9000"},
            ConfigError,
            "must be an http:// or https:// URL",
        ),
    ],
)
def test_every_refusal_is_a_sentence_with_a_remedy(server, tmp_path, location, settings, failure, words):
    with pytest.raises(failure, match=words):
        obtain(BucketSource(location, server.settings | settings), tmp_path)


def test_no_credentials_at_all_is_reported_with_where_to_put_them(server, tmp_path, monkeypatch):
    # Where a machine on AWS would ask for its role; here nobody listens.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    settings = {"AWS_ENDPOINT_URL": server.endpoint}
    with pytest.raises(AccessDenied, match=r"no credentials for s3://models/tiny.*AWS_ACCESS_KEY_ID"):
        obtain(BucketSource("models/tiny", settings), tmp_path)
