"""Checks of models that cannot run: ever more rarely, and soon where requests ask for them."""

import asyncio
from types import SimpleNamespace

import pytest

from wisp_operator import api
from wisp_operator.core.access.tokens import TokenKeys
from wisp_operator.core.fit.verdict import FitReport, FitResult
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.local.controller import Controller
from wisp_operator.local.machine import hardware, path_preflight
from wisp_operator.local.machine.path_preflight import Recheck, next_check


def test_a_folder_that_stays_broken_is_checked_ever_more_rarely():
    pauses, recheck, now = [], None, 1000.0
    for _ in range(7):
        recheck = next_check(recheck, now, took_s=0.3)
        pauses.append(recheck.at - now)
        now = recheck.at
    assert pauses == [2, 4, 8, 16, 32, 32, 32]
    assert next_check(recheck, now, took_s=20.0).asked_at == now + 80  # a slow check keeps nobody busy


@pytest.mark.parametrize(
    ("now", "is_asked", "is_due"), [(9, True, False), (10, True, True), (10, False, False), (40, False, True)]
)
def test_a_request_brings_the_next_check_forward(now, is_asked, is_due):
    assert Recheck(asked_at=10, at=40, pause_s=32).is_due(now, is_asked=is_asked) is is_due


GIB = 1 << 30
FITS = FitResult(FitReport("Fits", "Fits."))


def model(gpus, name="chat"):
    return api.parse(
        {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": name},
            "spec": {"model": {"uri": "hf://org/name"}, "gpu": {"count": gpus}},
        }
    )


def lacks(missing_bytes, verdict="DoesNotFit"):
    return FitResult(FitReport(verdict, "No.", headroom_bytes=-missing_bytes))


def test_a_model_that_did_not_fit_may_start_once_it_fits(monkeypatch):
    """Its manifest stays as it is: only the memory of the machine changed."""
    monkeypatch.setattr(path_preflight, "FIRST_PAUSE_S", 0.0)
    results = iter([lacks(GIB), lacks(GIB), FITS])

    async def fit(_):
        return next(results, FITS)

    async def run():
        cluster = SimpleNamespace(pods=lambda key: [], apply=lambda key, deployment: None)
        settings = BuildSettings()
        loop = Controller(cluster, fit=fit, publish=lambda _: None, settings=settings, tokens=TokenKeys(None))
        await loop.set_models([model(0)])
        states = []
        for _ in range(200):
            loop.reconcile_now()
            states.append(loop.statuses["default/chat"].state)
            if states[-1] != "Failed":
                return states
            await asyncio.sleep(0.01)
        return states

    states = asyncio.run(run())
    assert (states[0], states[-1]) == ("Failed", "Asleep")


@pytest.fixture
def machine(monkeypatch):
    """A machine whose free memory, GPUs and verdict are set by a test."""
    found = SimpleNamespace(free_bytes=10 * GIB, cards=[], result=FITS, checks=0)

    async def run_isolated(_):
        found.checks += 1
        return {"": found.result}

    monkeypatch.setattr(hardware, "cards", lambda: list(found.cards))
    monkeypatch.setattr(hardware, "free_memory_bytes", lambda: found.free_bytes)
    monkeypatch.setattr(hardware, "run_isolated", run_isolated)
    return found


def card(free_gib, name="NVIDIA H200"):
    return hardware.Card(name, 140 * GIB, free_gib * GIB, "580")


@pytest.mark.parametrize(
    ("result", "free_gib", "checks"),
    [
        (lacks(9 * GIB), 19, 1),  # 90 % of 9 GiB more is less than is missing
        (lacks(9 * GIB), 20, 2),
        (lacks(0), 100, 1),  # no memory would help: a setting is refused
        (lacks(9 * GIB, "Unknown"), 10, 2),
        (FITS, 10, 2),
    ],
)
def test_a_model_is_checked_again_once_the_missing_memory_is_there(machine, result, free_gib, checks):
    machine.result = result
    fitting = hardware.LocalFitChecker("auto")
    asyncio.run(fitting(model(0)))
    machine.free_bytes = free_gib * GIB
    assert asyncio.run(fitting(model(0))) == result
    assert machine.checks == checks


def test_a_changed_manifest_is_checked_whatever_memory_there_is(machine):
    machine.result = lacks(GIB)
    fitting = hardware.LocalFitChecker("auto")
    asyncio.run(fitting(model(0)))
    machine.result = FITS
    assert asyncio.run(fitting(model(1))) == FITS


@pytest.mark.parametrize(
    ("cards", "checks"),
    [
        ([card(40)], 1),
        ([card(50)], 2),  # another program has ended
        ([card(40), card(100)], 2),
        ([card(10)], 1),
        ([card(40, "NVIDIA L40S")], 2),
        ([], 1),  # a driver that does not answer has not lost its GPUs
    ],
)
def test_a_gpu_that_changed_is_looked_at_again(machine, cards, checks):
    machine.cards, machine.result = [card(40)], lacks(5 * GIB)
    fitting = hardware.LocalFitChecker("auto")
    asyncio.run(fitting(model(1)))
    machine.cards = cards
    asyncio.run(fitting(model(1)))
    assert machine.checks == checks


def test_memory_that_this_sessions_pods_take_does_not_count_against_a_model(machine):
    machine.cards = [card(130)]
    fitting = hardware.LocalFitChecker("auto")
    machine.cards = [card(10)]
    jobs = []

    async def run_isolated(job):
        jobs.append(job)
        return {"": FITS}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "run_isolated", run_isolated)
        asyncio.run(fitting(model(1)))
    assert jobs[0].devices[""].available_bytes == int(130 * GIB * 0.9)
