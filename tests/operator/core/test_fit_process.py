"""Fit checks in a child process: what a model's files ask for is bounded, and the caller's loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from machine_pace import pace
from tiny_model import CONFIG, WEIGHTS, model

from wisp_operator.core.fit import process
from wisp_operator.core.fit.process import CheckAborted, run_isolated
from wisp_operator.core.fit.verdict import Device
from wisp_operator.core.fit.worker import FitJob, Limits

L4 = Device("cuda", "L4", 20 << 30)
MIB = 1 << 20


def job(uri: str, **settings: str) -> FitJob:
    return FitJob(model(uri), {"l4": L4}, **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path


async def largest_gap_beside(work, samples: list[float]):
    """Await ``work``; the longest time that the event loop stood still meanwhile goes to ``samples``."""

    async def watch() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            samples.append(time.monotonic() - last)
            last = time.monotonic()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    finally:
        watcher.cancel()


def children() -> set[int]:
    """The processes that this one started and has not waited for, other tests' servers among them."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may end between the two looks
            found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


def test_a_report_of_a_child_is_that_of_this_process(folder):
    mine = job(f"file://{folder}").run()
    assert asyncio.run(run_isolated(job(f"file://{folder}"))) == mine
    assert mine["l4"].report.verdict == "Fits"


@pytest.mark.parametrize(
    "config",
    [
        b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
        json.dumps({**CONFIG, "num_hidden_layers": 10**12}).encode(),
        json.dumps({**CONFIG, "num_hidden_layers": 1024, "vocab_size": 1 << 22}).encode(),
        b"[" * 1_000_000,
    ],
    ids=["10 MB", "10^12 layers", "the largest allowed", "deep"],
)
def test_a_hostile_config_costs_this_process_neither_memory_nor_time(folder, config):
    (folder / "config.json").write_bytes(config)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gaps: list[float] = []
    with pace() as machine:
        report = asyncio.run(largest_gap_beside(run_isolated(job(f"file://{folder}")), gaps))["l4"].report
    assert report.verdict in ("Unknown", "Unsupported")
    assert report.message
    assert max(gaps) < 0.5 * machine.stretch  # 6.7 s with the parser in this process
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * MIB // 1024


@pytest.fixture
def silent_hub():
    """A hub that accepts connections and sends a byte now and then, for ever."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        try:
            while True:
                connection, _ = server.accept()
                threading.Thread(target=trickle, args=(connection,), daemon=True).start()
        except OSError:
            return

    def trickle(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.1):
                connection.sendall(b" ")

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    ended.set()
    server.close()


def test_a_hub_that_trickles_is_given_up_and_the_child_is_gone(silent_hub):
    before = children()
    with pytest.raises(CheckAborted, match=r"could not be read within 1 s; a pod will measure it"):
        asyncio.run(run_isolated(job("hf://a/b", hub_endpoint=silent_hub), Limits(wall_s=1)))
    assert children() <= before


def test_a_cancelled_check_ends_its_child(silent_hub):
    before = children()

    async def run() -> None:
        task = asyncio.create_task(run_isolated(job("hf://a/b", hub_endpoint=silent_hub)))
        while children() <= before:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled()

    asyncio.run(run())
    assert children() <= before


def test_a_check_that_needs_more_memory_than_its_limit_is_unknown(folder):
    weights = b"x" * 100
    tensors = {
        f"t{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(100_000)
    }
    text = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + weights)
    limits = Limits(memory_bytes=64 * MIB)
    try:
        result = asyncio.run(run_isolated(job(f"file://{folder}"), limits))["l4"]
        message = result.report.message
    except CheckAborted as error:
        message = str(error)
    assert "more than 64.0 MiB of memory to check; a pod will measure it" in message


def test_a_check_that_computes_without_end_is_ended_by_its_limit_of_cpu_time(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    (folder / "sitecustomize.py").write_text(
        "import json\njson.loads = lambda *_, **__: [None for _ in iter(int, 1)]"
    )
    with pytest.raises(CheckAborted, match=r"more than 1 s to check|of memory to check"):
        asyncio.run(run_isolated(job(f"file://{folder}"), Limits(cpu_s=1, memory_bytes=8 << 30)))


def test_an_error_of_the_check_itself_is_unknown_and_logged(folder, monkeypatch, caplog):
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    (folder / "sitecustomize.py").write_text("import json\njson.loads = None")
    with pytest.raises(CheckAborted, match="ended with an error, which the log has"):
        asyncio.run(run_isolated(job(f"file://{folder}")))
    assert "default/tiny ended with exit code 1" in caplog.text


def test_no_process_for_the_check_is_a_verdict_too(folder, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(CheckAborted, match="No process could be made"):
        asyncio.run(run_isolated(job(f"file://{folder}")))


def test_a_check_that_is_ended_from_outside_is_no_fault_to_report(tmp_path, monkeypatch, caplog):
    """SIGTERM to a group of processes, as a service manager sends it."""
    monkeypatch.setattr(process, "WORKER", "wisp_test_terminated")
    (tmp_path / "wisp_test_terminated.py").write_text("import os; os.kill(os.getpid(), 15)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(CheckAborted, match="ended from outside"):
        asyncio.run(run_isolated(job("file:///srv")))
    assert caplog.messages == []


def test_a_childs_group_is_not_this_process_one(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "WORKER", "wisp_test_group")
    (tmp_path / "wisp_test_group.py").write_text(
        'import json, os; print(json.dumps({"l4": {"report": {"verdict": "Unknown", '
        '"message": str(os.getpgrp())}, "fault": ""}}))'
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    results = asyncio.run(run_isolated(job("file:///srv")))
    assert int(results["l4"].report.message) != os.getpgrp()
