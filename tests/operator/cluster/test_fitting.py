"""Fit checks beside the reconcile loop: one tenant's files keep no other's models waiting."""

import asyncio
import time

import pytest
from machine_pace import pace

from wisp_operator.api import parse
from wisp_operator.cluster.reconcile import fitting
from wisp_operator.cluster.reconcile.fitting import FitChecker
from wisp_operator.core.fit.process import CheckAborted
from wisp_operator.core.fit.verdict import Device, FitReport, FitResult

L4 = {"NVIDIA-L4": Device("cuda", "L4", 20 << 30)}


def model(name, namespace="a", uri="hf://org/name"):
    document = {"apiVersion": "wisp.dev/v1alpha1", "kind": "InferenceModel"}
    metadata = {"name": name, "namespace": namespace, "uid": "u1"}
    return parse(document | {"metadata": metadata, "spec": {"model": {"uri": uri}}})


class Checks:
    """Stands in for child processes: those of ``blocked`` namespaces end when they are released."""

    def __init__(self, monkeypatch):
        self.blocked, self.released = set(), asyncio.Event()
        self.running, self.started, self.outcome = [], [], FitReport("Fits", "yes")
        monkeypatch.setattr(fitting, "run_isolated", self.run)

    async def run(self, job):
        self.started.append(job.model.key)
        self.running.append(job.model.namespace)
        try:
            if job.model.namespace in self.blocked:
                await self.released.wait()
        finally:
            self.running.remove(job.model.namespace)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"NVIDIA-L4": FitResult(self.outcome)}


async def settled(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_a_verdict_is_there_when_the_model_is_enqueued_again(monkeypatch):
    async def run():
        checks, answered = Checks(monkeypatch), []
        checker = FitChecker("", answered.append)
        assert checker.verdict(model("m"), L4) is None
        await settled(lambda: answered == ["a/m"])
        assert checker.verdict(model("m"), L4).report.verdict == "Fits"
        assert checks.started == ["a/m"]

    asyncio.run(run())


def test_one_namespace_takes_one_place_and_the_others_models_are_checked(monkeypatch):
    async def run():
        checks, answered = Checks(monkeypatch), []
        checks.blocked = {"hostile"}
        checker = FitChecker("", answered.append)
        for number in range(50):
            checker.verdict(model(f"m{number}", "hostile"), L4)
        for number in range(5):
            checker.verdict(model(f"m{number}", f"tenant-{number}"), L4)
        await settled(lambda: len(answered) == 5)
        assert checks.running == ["hostile"]
        assert all(key.startswith("tenant-") for key in answered)

    asyncio.run(run())


def test_a_model_starts_unmeasured_where_every_place_is_taken(monkeypatch):
    monkeypatch.setattr(fitting, "ANSWER_TIMEOUT_S", 0.2)

    async def run():
        checks, answered = Checks(monkeypatch), []
        checks.blocked = {"evil", "vile"}
        checker = FitChecker("", answered.append)
        for namespace in ("evil", "vile", "good"):
            checker.verdict(model("m", namespace), L4)
        await settled(lambda: "good/m" in answered)
        report = checker.verdict(model("m", "good"), L4).report
        assert (report.verdict, "a pod may measure it first" in report.message) == ("Unknown", True)
        checks.released.set()
        await settled(lambda: answered.count("good/m") == 2)
        assert checker.verdict(model("m", "good"), L4).report.verdict == "Fits"

    asyncio.run(run())


def test_an_unknown_verdict_stands_while_it_is_checked_again_and_rarer_if_it_was_aborted(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(fitting.time, "monotonic", lambda: clock[0])

    async def run():
        checks, answered = Checks(monkeypatch), []
        checks.outcome = CheckAborted("too much")
        checker = FitChecker("", answered.append)
        intervals = []
        for _ in range(4):
            began_s, checks_before = clock[0], len(checks.started)
            while len(checks.started) == checks_before:
                clock[0] += 50.0
                verdict = checker.verdict(model("m"), L4)
                assert verdict is None or verdict.report.message == "too much"
                for _ in range(10):
                    await asyncio.sleep(0)
            intervals.append(clock[0] - began_s)
        assert intervals == [50.0, 650.0, 1250.0, 2450.0]

    asyncio.run(run())


def test_a_model_that_is_gone_ends_its_check(monkeypatch):
    async def run():
        checks = Checks(monkeypatch)
        checks.blocked = {"a"}
        checker = FitChecker("", lambda key: None)
        checker.verdict(model("m"), L4)
        await settled(lambda: checks.running)
        checker.forget("a/m")
        await settled(lambda: not checks.running)

    asyncio.run(run())


def test_a_fault_of_the_check_is_unknown_and_logged(monkeypatch, caplog):
    async def run():
        checks, answered = Checks(monkeypatch), []
        checks.outcome = RuntimeError("a defect")
        checker = FitChecker("", answered.append)
        checker.verdict(model("m"), L4)
        await settled(lambda: answered)
        assert checker.verdict(model("m"), L4).report.verdict == "Unknown"

    asyncio.run(run())
    assert "the fit check of a/m failed" in caplog.text


@pytest.mark.parametrize("uri", ["s3://bucket/x", "pvc://claim/x", "file:///srv/x"])
def test_what_only_a_pod_can_read_is_answered_without_a_process(monkeypatch, uri):
    async def run():
        checks = Checks(monkeypatch)
        verdict = FitChecker("", lambda key: None).verdict(model("m", uri=uri), L4)
        assert (verdict.report.verdict, verdict.report.gpu, checks.started) == ("Unknown", "L4", [])

    asyncio.run(run())


def test_a_hub_with_a_hostile_config_stops_neither_the_loop_nor_the_lease():
    """The lease is valid for 4.5 s; with the parser in this process 10 MB stopped the loop for 6.7 s."""
    body = b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        answered, gaps = [], []
        checker = FitChecker(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", answered.append)
        checker.verdict(model("m"), L4)
        while not answered:
            began_s = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - began_s)
        server.close()
        report = checker.verdict(model("m"), L4).report
        assert (report.verdict, "more than 1048576 bytes" in report.message) == ("Unknown", True)
        return max(gaps)

    with pace() as machine:
        largest_gap_s = asyncio.run(run())
    assert largest_gap_s < 1.0 * machine.stretch
