"""``wisp up`` of a model for a GPU, on a machine without one."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wisp_operator.api import parse
from wisp_operator.local.machine.hardware import LocalFitChecker

WISP = Path(sys.executable).with_name("wisp")
pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")


def manifest(count):
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"uri": "file:///not/there"}, "gpu": {"count": count}},
    }


def test_a_missing_gpu_is_an_error_at_once(tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(manifest(1)))
    command = [str(WISP), "up", str(file), "--port", "0", "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--device cuda: nvidia-smi lists no GPU" in done.stderr


def test_a_model_for_a_gpu_that_runs_on_the_cpu_is_logged_once(caplog):
    fitting = LocalFitChecker("auto")
    for count in (0, 1, 1):
        asyncio.run(fitting(parse(manifest(count))))
    assert [record.getMessage() for record in caplog.records] == [
        "default/tiny asks for a GPU, and nvidia-smi lists none: it runs on the CPU."
    ]
