"""``wisp up`` with folders of strangers beside a good model: each has a sentence, the good one answers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[1] / "fake_runtime.py"
WISP = Path(sys.executable).with_name("wisp")
TIMEOUT_S = 200
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
HOSTILE = {
    "layers": json.dumps(CONFIG | {"num_hidden_layers": 10**12}).encode(),
    "text": b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
    "deep": b"[" * 1_000_000,
}


def manifest(name, uri):
    spec = {"model": {"uri": uri}, "gpu": {"count": 0}}
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture
def running(tmp_path):
    """The process and the URL of its gateway."""
    models = [manifest("good", "hf://fake/good")]
    for name, text in HOSTILE.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(text)
        models.append(manifest(name, f"file://{tmp_path / name}"))
    file = tmp_path / "models.yaml"
    file.write_text("\n---\n".join(map(json.dumps, models)))
    environment = {"WISP_RUNTIME_PROGRAM": str(FAKE), "HF_ENDPOINT": "http://127.0.0.1:9"}
    process = subprocess.Popen(
        [str(WISP), "up", str(file), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
        text=True,
    )
    yield process, process.stdout.readline().strip()
    if process.poll() is None:
        process.kill()
        process.wait()
    process.stdout.close()


def answer(url, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


def models_of(url):
    return {model["name"]: model for model in answer(url.removesuffix("/v1") + "/state")["models"]}


def test_hostile_folders_cost_a_good_model_nothing(running):
    """10^12 layers ate 60 MB a second of this process, and no signal ended it."""
    process, url = running
    chat = {"model": "good", "messages": [{"role": "user", "content": "hi"}]}
    assert answer(f"{url}/chat/completions", chat)["choices"]
    deadline_s = time.monotonic() + TIMEOUT_S
    expected = {"good": "Serving", "layers": "ModelUnsupported", "text": "WeightsUnreadable"}
    expected["deep"] = "WeightsUnreadable"
    while {name: model["reason"] for name, model in models_of(url).items()} != expected:
        assert time.monotonic() < deadline_s, models_of(url)
        time.sleep(0.1)
    assert "num_hidden_layers is 1000000000000; expected" in models_of(url)["layers"]["message"]
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 200 << 10
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
