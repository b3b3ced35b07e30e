"""``wisp-runtime serve`` of a stranger's folder: a sentence and an exit, at once and in little memory."""

import json
import os
import resource
import subprocess
import sys

import pytest
from fake_engine import write_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
SERVE = "from wisp_runtime.cli.main import main; main()"
MAX_MEMORY_BYTES = 4 << 30  # address space; the limit of a runtime's pod


def config(**changes):
    return json.dumps({**CONFIG, **changes}).encode()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", config(num_hidden_layers=10**12), "num_hidden_layers is 1000000000000; expected"),
        ("config.json", config(num_hidden_layers=1024), "tensors are missing"),
        (
            "config.json",
            b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
            "has more than 1",
        ),  # bytes, or MiB by the reader of tokenizers
        (
            "model.safetensors",
            (1 << 62).to_bytes(8, "little") + bytes(100),
            "a header of 4611686018427387904 bytes",
        ),
        ("model.safetensors.index.json", b"[" * (17 << 20), "has more than 16777216 bytes"),
    ],
)
def test_a_hostile_file_ends_the_start_with_a_sentence(tmp_path, name, content, says):
    folder = write_model(tmp_path / "model")
    (folder / "config.json").write_bytes(config())
    if name != "model.safetensors.index.json":
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / name).write_bytes(content)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SERVE,
            "serve",
            str(folder),
            "--device",
            "cpu",
            "--port",
            "0",
            "--host",
            "127.0.0.1",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES,) * 2),
    )
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, says in last) == (1, True), done.stderr[-2000:]
    assert len(last) < 1000
