"""Asking whether a model fits before a pod exists: from a folder, and from a hub over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from tiny_gguf import write_gguf
from tiny_model import CONFIG, REPO, WEIGHTS, model

from wisp_operator import api
from wisp_operator.core.fit import verdict
from wisp_operator.core.fit.sources import HubRepository, LocalFolder, files_of
from wisp_operator.errors import SourceError
from wisp_plan.errors import UnknownArchitecture, UnknownCard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path


class Hub:
    """A hub on the loopback that redirects weights to a storage on another host, as the real one does."""

    def __init__(self, *, ranges: bool = True, token: str = "") -> None:
        self.files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS}
        self.ranges, self.token, self.sent_bytes = ranges, token, 0
        self.storage_saw_token = False
        self.paths: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, *args: object) -> None:
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.paths.append(request.path)
        name = request.path.rsplit("/", 1)[-1]
        authorization = request.headers.get("Authorization", "")
        if request.path.startswith("/storage/"):
            self.storage_saw_token |= bool(authorization)
        elif self.token and authorization != f"Bearer {self.token}":
            request.send_error(401)
            return
        elif name == "model.safetensors":
            request.send_response(302)
            request.send_header("Location", f"http://localhost:{self.server.server_port}/storage/{name}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        body = self.files.get(name)
        if body is None:
            request.send_error(404)
            return
        self.send(request, body)

    def send(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        whole = len(body)
        if self.ranges:
            first, last = request.headers["Range"].removeprefix("bytes=").split("-")
            body = body[int(first) : int(last) + 1]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{whole}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        try:
            request.wfile.write(body)
            self.sent_bytes += len(body)
        except ConnectionError:
            return  # the reader has seen enough

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub()
    yield found
    found.close()


def test_a_folder_suffices_to_check_the_fit(folder):
    device = verdict.Device("cpu", "this machine", 1 << 30)
    report = verdict.check(model(f"file://{folder}", gpu={"count": 0}), LocalFolder(folder), device)
    assert report.verdict == "Fits"
    assert report.max_context == 2048
    assert report.weights_bytes > 0
    assert report.headroom_bytes > 0
    assert report.basis == "computed from the weights headers"
    assert report.gpu == "this machine"


def test_too_little_memory_is_a_verdict_with_numbers_and_a_remedy(folder):
    wanted = model(f"file://{folder}", runtime={"maxConcurrent": 1024})
    report = verdict.check(wanted, LocalFolder(folder), verdict.Device("cuda", "L4", 540 << 20))
    assert report.verdict == "DoesNotFit"
    assert report.message.startswith("Needs ")
    assert "the L4 has 540.0 MiB free; fits with" in report.message
    assert report.headroom_bytes < 0


@pytest.mark.parametrize(
    ("change", "expect", "words"),
    [
        ({"architectures": ["MysteryForCausalLM"]}, "Unsupported", "MysteryForCausalLM"),
        ({"hidden_size": 128}, "Unknown", "model.safetensors"),  # other weights than the config promises
        ({"hidden_size": "wide"}, "Unsupported", "hidden_size"),
        ({"head_dim": 320}, "Unsupported", "heads of attention have 320 channels, over 256"),
    ],
)
def test_a_model_that_cannot_run_says_why(folder, change, expect, words):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    report = verdict.check(
        model(f"file://{folder}"), LocalFolder(folder), verdict.Device("cuda", "L4", 20 << 30)
    )
    assert report.verdict == expect, report.message
    assert words in report.message or expect == "Unknown"


def test_a_context_that_the_model_never_had_does_not_fit(folder):
    wanted = model(f"file://{folder}", runtime={"maxContext": 4096})
    report = verdict.check(wanted, LocalFolder(folder), verdict.Device("cuda", "L4", 20 << 30))
    assert report.verdict == "DoesNotFit"
    assert "maxContext (--max-context) is 4096" in report.message


def test_deterministic_mode_is_refused_beside_hopper(folder):
    wanted = model(f"file://{folder}", runtime={"deterministic": True})
    for hardware, expect in (
        ("ada", "DoesNotFit"),
        ("ampere", "DoesNotFit"),
        ("hopper", "Fits"),
        (None, "Fits"),
    ):
        report = verdict.check(wanted, LocalFolder(folder), verdict.Device("cuda", "L4", 20 << 30, hardware))
        assert report.verdict == expect, report.message
        assert ("is for Hopper GPUs (H100, H200), not for L4" in report.message) == (expect == "DoesNotFit")


def test_a_truncated_checkpoint_is_not_known_to_fit(folder):
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-10])
    report = verdict.check(
        model(f"file://{folder}"), LocalFolder(folder), verdict.Device("cuda", "L4", 20 << 30)
    )
    assert report.verdict == "Unknown"
    assert "truncated" in report.message


def test_a_missing_folder_says_which(tmp_path):
    wanted = model(f"file://{tmp_path}/none")
    report = verdict.check(
        wanted, files_of(wanted.spec.model), verdict.Device("cpu", "this machine", 1 << 30)
    )
    assert report.verdict == "Unknown"  # the pod will say so too, and is the one to know
    assert f"{tmp_path}/none is not there. Point spec.model.uri at a folder" in report.message


def test_a_file_in_place_of_a_folder_is_named_as_one(tmp_path):
    (tmp_path / "model.bin").touch()
    report = verdict.check(
        wanted := model(f"file://{tmp_path}/model.bin"),
        files_of(wanted.spec.model),
        verdict.Device("cpu", "this machine", 1 << 30),
    )
    assert f"{tmp_path}/model.bin is neither a folder nor a GGUF file" in report.message


def test_an_operator_in_a_pod_does_not_read_its_own_folders_for_a_nodes(folder):
    wanted = model(f"file://{folder}")
    assert files_of(wanted.spec.model, sees_node=False) is None


def test_only_headers_are_read_from_a_hub(hub):
    files = files_of(model(f"hf://{REPO}").spec.model, endpoint=hub.endpoint)
    report = verdict.check(model(f"hf://{REPO}"), files, verdict.Device("cuda", "L4", 20 << 30))
    assert report.verdict == "Fits", report.message
    assert hub.paths[0] == f"/{REPO}/resolve/main/config.json"
    assert {path for path in hub.paths if "storage" in path} == {"/storage/model.safetensors"}
    assert hub.sent_bytes < (256 << 10) + 4096


def test_a_hub_s_quantization_is_found_beside_its_config_too(hub):
    hub.files["hf_quant_config.json"] = json.dumps({"quantization": {"quant_algo": "FP8"}}).encode()
    files = files_of(model(f"hf://{REPO}").spec.model, endpoint=hub.endpoint)
    assert files is not None
    quantization = files.config().quantization
    assert quantization is not None
    assert quantization.method == "modelopt"


def test_a_config_that_cannot_run_is_named_with_its_repository(hub):
    hub.files["config.json"] = json.dumps({**CONFIG, "architectures": ["Mystery"]}).encode()
    files = files_of(model(f"hf://{REPO}").spec.model, endpoint=hub.endpoint)
    with pytest.raises(UnknownArchitecture, match=f"^hf://{REPO}/config.json: architecture Mystery"):
        files.config()


def test_a_revision_is_one_path_segment(hub):
    found = model(f"hf://{REPO}")
    source = api.ModelSource(uri=f"hf://{REPO}", revision="refs/pr/1")
    files = files_of(source, endpoint=hub.endpoint)
    verdict.check(found, files, verdict.Device("cuda", "L4", 20 << 30))
    assert hub.paths[0] == f"/{REPO}/resolve/refs%2Fpr%2F1/config.json"


def test_a_hub_that_ignores_ranges_is_read_all_the_same():
    hub = Hub(ranges=False)
    try:
        files = HubRepository(REPO, endpoint=hub.endpoint)
        assert files.tensors().file_bytes == len(WEIGHTS)
        assert len(files.config().layers) == 2
    finally:
        hub.close()


def test_a_sharded_checkpoint_is_read_by_its_index(hub):
    names = list(json.loads(WEIGHTS[8 : 8 + int.from_bytes(WEIGHTS[:8], "little")]))
    hub.files["model-00001-of-00001.safetensors"] = hub.files.pop("model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    assert len(HubRepository(REPO, endpoint=hub.endpoint).tensors()) == len(names)


def test_the_token_goes_to_the_hub_and_never_to_its_storage():
    hub = Hub(token="secret")
    try:
        with pytest.raises(SourceError, match=r"private, gated or does not exist \(HTTP 401\).*HF_TOKEN"):
            HubRepository(REPO, endpoint=hub.endpoint).config()
        files = HubRepository(REPO, endpoint=hub.endpoint, token="secret")
        assert len(files.config().layers) == 2
        assert len(files.tensors()) > 0
        assert not hub.storage_saw_token
        assert any(path.startswith("/storage/") for path in hub.paths)
    finally:
        hub.close()


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda hub: hub.files.pop("config.json"), "has no config.json"),
        (lambda hub: hub.files.update({"config.json": b"<html>"}), "is not JSON"),
        (lambda hub: hub.files.pop("model.safetensors"), "model.safetensors is not there"),
    ],
)
def test_a_hub_without_the_files_leaves_the_fit_unknown(hub, break_it, words):
    break_it(hub)
    files = HubRepository(REPO, endpoint=hub.endpoint)
    report = verdict.check(model(f"hf://{REPO}"), files, verdict.Device("cuda", "L4", 20 << 30))
    assert report.verdict == "Unknown"
    assert words in report.message


def test_a_hub_that_is_not_there_leaves_the_fit_unknown(hub):
    endpoint = hub.endpoint
    hub.server.server_close()
    files = HubRepository(REPO, endpoint=endpoint)
    report = verdict.check(model(f"hf://{REPO}"), files, verdict.Device("cuda", "L4", 20 << 30))
    assert report.verdict == "Unknown"
    assert endpoint in report.message


def test_an_endpoint_must_be_http():
    with pytest.raises(SourceError, match="HF_ENDPOINT"):
        HubRepository(REPO, endpoint="file:///etc")


@pytest.mark.parametrize("uri", ["s3://bucket/m", "pvc://models", "oci://ghcr.io/acme/q:1"])
def test_what_only_a_pod_can_read_is_unknown_until_one_has(uri):
    report = verdict.check(
        model(uri), files_of(model(uri).spec.model), verdict.Device("cuda", "L4", 20 << 30)
    )
    assert report.verdict == "Unknown"
    assert uri.partition("://")[0] in report.message


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ({}, None),
        ({"count": 0}, None),
        ({"product": ["NVIDIA-L4"]}, "L4"),
        ({"product": ["NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"]}, "L4"),  # the smallest that may be chosen
        ({"product": ["Tesla-T4", "NVIDIA-L4"]}, "L4"),  # a T4 has no kernels
        ({"product": ["Tesla-T4"]}, "T4"),
        ({"memory": "24Gi"}, "GPU with 24Gi"),
    ],
)
def test_the_device_is_the_smallest_that_the_spec_allows(gpu, name):
    device = verdict.device_of(model("hf://a/b", gpu=gpu).spec.gpu)
    assert (device.name if device else None) == name
    assert device is None or 10 << 30 < device.available_bytes < 24 << 30


def test_an_unknown_card_is_an_error_that_names_it():
    with pytest.raises(UnknownCard, match="NVIDIA-X9000"):
        verdict.device_of(model("hf://a/b", gpu={"product": ["NVIDIA-X9000"]}).spec.gpu)


def test_any_gpu_is_no_question_to_answer(folder):
    report = verdict.check(model(f"file://{folder}"), LocalFolder(folder), None)
    assert report.verdict == "Unknown"
    assert "spec.gpu.product" in report.message


@pytest.mark.parametrize(
    ("text", "expect", "words"),
    [
        (b'{"a":[' + b"[]," * 3_000_000 + b"[]]}", "Unknown", "has more than 1048576 bytes"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**12}).encode(), "Unsupported", "at most 1024"),
        (json.dumps({**CONFIG, "num_hidden_layers": 1024}).encode(), "Unknown", "tensors are missing"),
    ],
)
def test_a_hubs_config_decides_neither_memory_nor_time(hub, text, expect, words):
    hub.files["config.json"] = text
    files = HubRepository(REPO, endpoint=hub.endpoint)
    report = verdict.check(model(f"hf://{REPO}"), files, verdict.Device("cuda", "L4", 20 << 30))
    assert (report.verdict, words in report.message) == (expect, True), report.message
    assert len(report.message) < 1000
    assert hub.sent_bytes < 3 << 20


def test_a_redirect_to_another_protocol_is_not_followed(hub):
    hub.answer = lambda request: (
        request.send_response(302),
        request.send_header("Location", "ftp://127.0.0.1/config.json"),
        request.end_headers(),
    )
    with pytest.raises(SourceError, match="redirects to ftp:"):
        HubRepository(REPO, endpoint=hub.endpoint).config()


CPU = verdict.Device("cpu", "CPU", 1 << 30)


def test_a_gguf_file_and_a_folder_with_one_are_models(tmp_path):
    write_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q8_0)
    for path in (tmp_path / "m.gguf", tmp_path):
        report = verdict.plan(model(f"file://{path}"), LocalFolder(path), CPU)
        assert (report.fits, report.quantization) == (True, "float32")
        assert report.ledger.weight_description == "float32, dequantized from Q8_0 (8.5 bits)"


def test_a_gguf_file_that_is_not_read_is_refused_with_its_reason(tmp_path):
    write_gguf(tmp_path / "m.gguf", architecture="gemma2")
    found = verdict.inspect(
        model(f"file://{tmp_path}/m.gguf"),
        LocalFolder(tmp_path / "m.gguf"),
        CPU,
    )
    assert (found.report.verdict, found.fault) == ("Unsupported", "ModelUnsupported")
    assert "the architecture 'gemma2' is not read from GGUF" in found.report.message
    (tmp_path / "m.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:3000])
    found = verdict.inspect(
        model(f"file://{tmp_path}/m.gguf"),
        LocalFolder(tmp_path / "m.gguf"),
        CPU,
    )
    assert (found.report.verdict, found.fault) == ("Unknown", "WeightsUnreadable")
