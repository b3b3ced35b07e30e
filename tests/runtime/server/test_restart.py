"""A hung step of the persistent kernel: the server starts itself again, without that kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import write_model

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.errors import KernelFault
from wisp_runtime.ops.cuda.device import driver
from wisp_runtime.server.restart import can_restart

SUPPORT = Path(__file__).parents[1] / "support"
HANG = "block 41, warp 10 of a decode step waited at the grid's barrier: a block never arrived there"

SERVER = f"""
import os, sys
sys.path.insert(0, {str(SUPPORT)!r})
from fake_engine import FakeEngine
from wisp_runtime.config import ServeConfig, decode_hang
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.server.process import run

print(os.getpid(), sys.argv[1:], decode_hang(), flush=True)
if decode_hang():
    sys.exit(0)

async def start(config):
    engine = FakeEngine()
    engine.failed.set_result(Fatal("KernelFault", "running a step: it hung.", 1, {{"hang": {HANG!r}}}))
    return engine

sys.exit(run(ServeConfig(sys.argv[1], port=0, host="127.0.0.1"), start))
"""


def test_a_server_whose_step_hung_starts_the_same_command_again_in_the_same_process(tmp_path):
    model = write_model(tmp_path / "tiny")
    (tmp_path / "server.py").write_text(SERVER)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "server.py"), str(model), "--port", "0"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    first, second = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stderr
    assert second == f"{first} {HANG}".replace("  ", " "), "same process id and arguments, and the reason"
    assert "KernelFault: running a step: it hung." in ended.stderr
    assert "starting again, with decode steps on the general path" in ended.stderr


@pytest.mark.parametrize(
    ("details", "settings", "expect"),
    [
        ({"hang": HANG}, {}, True),
        ({"code": 719}, {}, False),  # another fault of a kernel: the process ends, and others serve
        ({"hang": HANG}, {"decode_path": "general"}, False),
        ({"hang": HANG}, {"deterministic": True, "device": "cuda"}, False),  # it has no other path
    ],
)
def test_only_a_hang_that_another_path_avoids_starts_it_again(details, settings, expect):
    assert can_restart(Fatal("KernelFault", "", 1, details), ServeConfig("m", **settings)) is expect


def test_the_driver_marks_a_fault_that_a_hang_explains(monkeypatch):
    monkeypatch.setattr(driver, "FAULT_REPORTERS", [lambda: HANG])
    failure = driver.failure_of(719, "running a step")
    assert isinstance(failure, KernelFault)
    assert failure.details["hang"] == HANG
    monkeypatch.setattr(driver, "FAULT_REPORTERS", [lambda: None])
    assert "hang" not in driver.failure_of(719, "running a step").details
