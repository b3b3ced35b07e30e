"""hf:// against a server that speaks the hub's API: what is fetched, with which token, and every refusal."""

import os

import pytest
from hub_server import Hub
from huggingface_hub import constants

from wisp_runtime.errors import (
    AccessDenied,
    ModelNotFound,
    ModelUnsupported,
    SourceUnreachable,
    WeightsUnreadable,
)
from wisp_runtime.sources import transfer
from wisp_runtime.sources.resolve import resolve

REPO = "acme/tiny"
RANGE = 64 << 10
WEIGHTS = os.urandom(5 * RANGE + 11)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same weights again",
    "original/consolidated.safetensors": b"and again",
    "README.md": b"# Tiny",
}
WANTED = {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub({REPO: dict(FILES)}) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield running


def names(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_the_quantization_beside_a_config_is_fetched(hub, tmp_path):
    hub.repositories[REPO]["hf_quant_config.json"] = b"{}"
    assert names(resolve(f"hf://{REPO}", None, tmp_path)) == WANTED | {"hf_quant_config.json"}


def test_a_repository_becomes_a_folder_of_what_a_model_needs(hub, tmp_path):
    moved = []
    folder = resolve(f"hf://{REPO}", None, tmp_path, lambda *progress: moved.append(progress))
    assert names(folder) == WANTED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert folder.parent.name.startswith("hf--acme--tiny--at-127.0.0.1-")
    assert folder == tmp_path / "weights" / folder.parent.name / hub.commit(REPO)
    total = sum(len(FILES[name]) for name in WANTED)
    assert moved[-1] == (total, total)
    assert hub.fetched_bytes() == total


@pytest.mark.parametrize("form", ["hf://acme/tiny@{}", "hf://acme/tiny"])
def test_a_pinned_commit_that_is_here_needs_no_hub(hub, tmp_path, form):
    commit = hub.commit(REPO)
    uri, revision = form.format(commit), None if "@" in form else commit
    folder = resolve(uri, revision, tmp_path)
    hub.paths.clear()
    assert resolve(uri, revision, tmp_path) == folder
    assert hub.paths == []


def test_a_branch_is_looked_up_at_every_start_with_one_request(hub, tmp_path):
    old = resolve(f"hf://{REPO}", None, tmp_path)
    hub.paths.clear()
    assert resolve(f"hf://{REPO}", "main", tmp_path) == old
    assert hub.paths == ["/api/models/acme/tiny/revision/main"]
    hub.repositories[REPO]["config.json"] = b'{"model_type": "qwen3"}'
    new = resolve(f"hf://{REPO}", None, tmp_path)
    assert new != old
    assert old.is_dir()


def test_large_files_come_in_ranges_and_go_on_after_a_cut(hub, tmp_path):
    hub.cut_after_bytes, hub.cuts = 10_000, 3
    folder = resolve(f"hf://{REPO}", None, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = sorted(start for name, start, _ in hub.sent if name == "model.safetensors")
    assert len(ranges) == 6 + 3
    assert hub.fetched_bytes() == sum(len(FILES[name]) for name in WANTED)  # not a byte twice


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_storage_is_asked_again(hub, tmp_path, status):
    hub.failing, hub.failures = status, 3
    assert names(resolve(f"hf://{REPO}", None, tmp_path)) == WANTED


def test_the_token_reaches_the_hub_and_never_its_storage(hub, tmp_path, monkeypatch):
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert names(resolve(f"hf://{REPO}", None, tmp_path)) == WANTED
    assert hub.storage_tokens == []


def test_a_gated_repository_opens_with_a_token(hub, tmp_path, monkeypatch):
    hub.gated.add(REPO)
    with pytest.raises(AccessDenied):
        resolve(f"hf://{REPO}", None, tmp_path)
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert names(resolve(f"hf://{REPO}", None, tmp_path)) == WANTED


def gated(hub):
    hub.gated.add(REPO)


def private(hub):
    hub.token = "hf_other"


def wrong_bytes(hub):
    page = dict(hub.repositories[REPO])

    class Lying(dict):
        """Lists the true files and sends others."""

        def __getitem__(self, name):
            return bytes(len(page[name])) if name == "model.safetensors" else page[name]

        def items(self):
            return page.items()

    hub.repositories[REPO] = Lying(page)


def no_ranges(hub):
    hub.takes_ranges = False


def busy(hub):
    hub.failures = 99


def forbidden(hub):
    hub.failures, hub.failing = 99, 403


def no_config(hub):
    del hub.repositories[REPO]["config.json"]


def gone(hub):
    hub.server.server_close()


@pytest.mark.parametrize(
    ("uri", "broken", "failure", "words"),
    [
        (
            f"hf://{REPO}",
            gated,
            AccessDenied,
            r"is gated: accept its terms at http.*/acme/tiny first. Set",
        ),
        (f"hf://{REPO}", private, ModelNotFound, r"is not at http.*, or is private. .* spec.model.secretRef"),
        ("hf://acme/other", None, ModelNotFound, r"hf://acme/other is not at http"),
        (f"hf://{REPO}@v9", None, ModelNotFound, r"has no revision 'v9': name a branch, tag or commit"),
        ("qwen/qwen3-8b", None, ModelNotFound, r"For a model of a hub, write hf://qwen/qwen3-8b"),
        ("https://hub.test/org/model/tree/main", None, ModelUnsupported, r"a hub, write hf://org/model\."),
        ("qwen3-8b", None, ModelNotFound, r"qwen3-8b is a shape, for wisp fit and bench: to serve the model"),
        ("hf://a/b/c", None, ModelNotFound, r"is no name: write hf://ORG/NAME"),
        (f"hf://{REPO}", no_config, ModelNotFound, r"has no config.json"),
        (
            f"hf://{REPO}",
            no_ranges,
            SourceUnreachable,
            r"ignores range requests for model.safetensors of .* \(HTTP 200",
        ),
        (f"hf://{REPO}", busy, SourceUnreachable, r"503.*is kept"),
        (f"hf://{REPO}", forbidden, AccessDenied, r"HTTP 403"),
        (f"hf://{REPO}", wrong_bytes, WeightsUnreadable, r"model.safetensors of hf://acme/tiny arrived with"),
        (f"hf://{REPO}", gone, SourceUnreachable, r"Check the connection"),
    ],
)
def test_every_refusal_is_a_sentence_with_a_remedy(hub, tmp_path, uri, broken, failure, words):
    if broken:
        broken(hub)
    with pytest.raises(failure, match=words):
        resolve(uri, None, tmp_path)


def test_a_token_that_may_not_see_a_repository_is_reported_as_that(hub, tmp_path, monkeypatch):
    hub.token = "hf_other"
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    with pytest.raises(ModelNotFound, match="or this token may not see it"):
        resolve(f"hf://{REPO}", None, tmp_path)


def test_offline_uses_the_copy_and_says_how_to_get_one(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnreachable, match=r"HF_HUB_OFFLINE forbids.*wisp-runtime pull"):
        resolve(f"hf://{REPO}", None, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = resolve(f"hf://{REPO}", None, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.paths.clear()
    assert resolve(f"hf://{REPO}", None, tmp_path) == folder
    assert hub.paths == []
