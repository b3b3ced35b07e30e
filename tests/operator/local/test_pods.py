"""Local pods over real processes: probed, restarted with back-off, drained, and never left behind."""

import asyncio
import json
import os
import signal
import time
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.local import pod_template
from wisp_operator.local.processes.cluster import LocalCluster
from wisp_operator.local.processes.pods import Pod, PodContext, PodState, head, log_tail
from wisp_operator.local.processes.process import Process

FAKE = Path(__file__).parents[1] / "fake_runtime.py"
PATIENCE_S = 60


def deployment(**fake):
    """A Deployment whose container is the fake runtime, with the variables ``fake``."""
    container = {
        "command": [str(FAKE)],
        "args": [
            "serve",
            "/models/tiny",
            "--host",
            "0.0.0.0",
            "--port=8000",
            "--termination-log",
            "/dev/termination-log",
        ],
        "env": [{"name": f"FAKE_{name.upper()}", "value": str(value)} for name, value in fake.items()],
        "startupProbe": {"httpGet": {"path": "/readyz"}, "periodSeconds": 1, "failureThreshold": 3},
        "readinessProbe": {"httpGet": {"path": "/readyz"}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 1},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 2}
    return {
        "metadata": {"name": "tiny", "namespace": "a"},
        "spec": {"replicas": 1, "template": {"spec": pod}},
    }


@asynccontextmanager
async def running(tmp_path, **fake):
    client = RuntimeClient()
    pod = Pod("tiny-1", pod_template.read(deployment(**fake)), PodContext(tmp_path, client, lambda: None))
    try:
        yield pod
    finally:
        await pod.stop(0)
        await client.close()


async def until(condition, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


def get(pod, path):
    with urllib.request.urlopen(f"http://{pod.address}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_pod_starts_then_is_ready_and_shows_its_progress_meanwhile(tmp_path):
    async def scenario():
        async with running(tmp_path, ready_after_s=0.5) as pod:
            await until(lambda: pod.runtime)
            assert pod.state == PodState.STARTING
            assert pod.runtime.status == "loading"
            await until(lambda: pod.state == PodState.READY)
            assert pod.restarts == 0

    asyncio.run(scenario())


def test_a_pod_listens_on_the_loopback_at_a_free_port_and_sees_no_setting_of_the_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("WISP_MAX_CONTEXT", "1")
    monkeypatch.setenv("SOME_TOKEN", "kept")

    async def scenario():
        async with running(tmp_path) as pod:
            await until(lambda: pod.state == PodState.READY)
            seen = await asyncio.to_thread(get, pod, "/pid")
            assert seen["argv"][-4:] == ["--host", "127.0.0.1", "--port", pod.address.split(":")[1]]
            assert "WISP_MAX_CONTEXT" not in seen["environment"]
            assert seen["environment"]["SOME_TOKEN"] == "kept"

    asyncio.run(scenario())


def test_a_killed_process_that_had_been_ready_is_started_again_at_once(tmp_path):
    async def scenario():
        async with running(tmp_path) as pod:
            await until(lambda: pod.state == PodState.READY)
            pid = (await asyncio.to_thread(get, pod, "/pid"))["pid"]
            os.kill(pid, signal.SIGKILL)
            await until(lambda: pod.restarts == 1 and pod.state == PodState.READY)
            assert (pod.last_failure.exit_code, pod.last_failure.reason) == (137, "Killed")

    asyncio.run(scenario())


def test_a_process_that_never_was_ready_waits_before_it_starts_again(tmp_path):
    async def scenario():
        seen = []
        async with running(tmp_path, crash_once=tmp_path / "crashed") as pod:
            pod._changed = lambda: seen.append((pod.state, time.monotonic()))
            await until(lambda: pod.state == PodState.READY)
            assert "first run fails" in pod.last_failure.message
            assert pod.restarts == 1
        backing_off_s = next(at_s for state, at_s in seen if state == PodState.BACKING_OFF)
        again_s = next(at_s for state, at_s in seen if state == PodState.STARTING and at_s > backing_off_s)
        assert again_s - backing_off_s >= 1.0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fake", "reason", "message"),
    [
        ({"exit": 3, "reason": "DoesNotFit"}, "DoesNotFit", "needs 2 GiB, has 1 GiB"),
        ({"exit": 1}, "Crashed", "the last line it printed"),  # no termination log: its last output
    ],
)
def test_the_exit_reason_comes_from_what_the_process_left(tmp_path, fake, reason, message):
    async def scenario():
        async with running(tmp_path, **fake) as pod:
            await until(lambda: pod.last_failure)
            assert (pod.last_failure.exit_code, pod.last_failure.reason) == (fake["exit"], reason)
            assert message in pod.last_failure.message

    asyncio.run(scenario())


def test_a_process_that_does_not_start_in_time_is_ended_and_says_so(tmp_path):
    async def scenario():
        async with running(tmp_path, ready_after_s=600) as pod:
            await until(lambda: pod.last_failure)
            assert pod.last_failure.reason == "StartupTimedOut"
            assert "not ready within 3 s" in pod.last_failure.message

    asyncio.run(scenario())


def test_stopping_ends_the_process_that_ignores_the_request_and_the_orphans_it_made(tmp_path):
    async def scenario():
        async with running(tmp_path, deaf=1, orphan=tmp_path / "orphan") as pod:
            await until(lambda: pod.state == PodState.READY)
            pid = (await asyncio.to_thread(get, pod, "/pid"))["pid"]
            orphan = int((tmp_path / "orphan").read_text())
            assert is_alive(pid)
            assert is_alive(orphan)
            await pod.stop(0.2)
            assert not is_alive(pid)
            assert not is_alive(orphan)
            assert pod.state == PodState.STOPPED

    asyncio.run(scenario())


def test_a_program_that_is_not_installed_is_a_sentence(tmp_path):
    async def scenario():
        client = RuntimeClient()
        manifest = deployment()
        manifest["spec"]["template"]["spec"]["containers"][0]["command"] = ["no-such-program"]
        pod = Pod("tiny-1", pod_template.read(manifest), PodContext(tmp_path, client, lambda: None))
        await until(lambda: pod.last_failure)
        assert pod.last_failure.reason == "ContainerRefused"
        assert "no-such-program is not installed on this machine" in pod.last_failure.message
        await pod.stop(0)
        await client.close()

    asyncio.run(scenario())


def test_a_process_ends_with_its_exit_code_and_its_output_is_kept(tmp_path):
    async def scenario():
        process = await Process.start(
            ["sh", "-c", "echo out; echo err >&2; exit 7"], os.environ, tmp_path / "log"
        )
        assert await process.wait() == 7
        assert (tmp_path / "log").read_text() == "out\nerr\n"

    asyncio.run(scenario())


DRAINS = "trap 'n=$((n+1)); [ $n -lt 2 ] || exit 3' TERM; echo up; while :; do sleep 0.05; done"


@pytest.mark.parametrize(("grace_s", "code"), [(30.0, 3), (0.0, 129)])
def test_a_hurried_program_gets_signals_until_one_is_its_second(tmp_path, grace_s, code):
    async def scenario():
        process = await Process.start(["sh", "-c", DRAINS], os.environ, tmp_path / "log")
        await until(lambda: "up" in (tmp_path / "log").read_text())
        assert await process.hurry(grace_s) == code

    asyncio.run(scenario())


def test_signals_that_come_while_a_program_ends_do_not_change_its_exit_code(tmp_path, monkeypatch):
    """The third SIGTERM of :meth:`Process.hurry` ended the subreaper, with 143, as it was leaving with 3."""
    monkeypatch.setattr("wisp_operator.local.processes.process.HURRY_PERIOD_S", 0.001)

    async def code_of(log):
        process = await Process.start(["sh", "-c", DRAINS], os.environ, log)
        await until(lambda: "up" in log.read_text())
        return await process.hurry(60)

    assert [asyncio.run(code_of(tmp_path / f"log-{n}")) for n in range(4)] == [3] * 4


def test_a_pod_that_could_not_be_run_is_tried_again_and_stops_in_order(tmp_path, monkeypatch):
    attempts = []
    run_once = Pod._run_once

    async def fails_once(self, started):
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError(28, "No space left on device")
        return await run_once(self, started)

    monkeypatch.setattr(Pod, "_run_once", fails_once)

    async def scenario():
        async with running(tmp_path) as pod:
            await until(lambda: pod.failures)
            assert pod.last_failure.reason == "InternalError"
            assert "No space left on device" in pod.last_failure.message
            assert "It is tried again; free space on a full disk" in pod.last_failure.message
            await until(lambda: pod.state == PodState.READY)

    asyncio.run(scenario())


def test_a_pod_that_is_no_longer_watched_names_the_remedy(tmp_path, monkeypatch):
    async def fails(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Pod, "_run", fails)

    async def scenario():
        async with running(tmp_path) as pod:
            await until(lambda: pod.failures)
            assert pod.last_failure.reason == "InternalError"
            assert "a bug" in pod.last_failure.message
            assert "restart wisp up" in pod.last_failure.message

    asyncio.run(scenario())


def test_a_pod_that_cannot_be_stopped_leaves_no_other_running(tmp_path, monkeypatch, caplog):
    stop = Pod.stop

    async def scenario():
        cluster = LocalCluster(tmp_path, lambda: None)
        cluster.apply("a/tiny", deployment())
        cluster.apply("a/other", deployment())
        bad, good = cluster.pods("a/tiny")[0], cluster.pods("a/other")[0]
        await until(lambda: good.state == bad.state == PodState.READY)
        monkeypatch.setattr(bad, "stop", lambda grace_s: fail())
        await cluster.close(0)
        assert good.state == PodState.STOPPED
        await stop(bad, 0)

    async def fail():
        raise RuntimeError("no")

    asyncio.run(scenario())
    assert "could not be stopped" in caplog.text


def test_the_end_of_a_large_log_and_the_head_of_a_large_report_are_read(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(4 << 30)  # sparse: nobody reads it as a whole
        file.seek(0, 2)
        file.write(b"\nthe last line\n")
    assert log_tail(log).endswith("the last line")
    assert len(head(log)) == 4096
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert head(fifo) == ""  # reading one would wait for a writer
    assert log_tail(tmp_path / "absent") == head(tmp_path / "absent") == ""
