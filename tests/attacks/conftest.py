"""Targets of the attacks: real processes, started once a session, with neighbours that watch them."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
from attacked_model import write_model
from gateway_target import GatewayTarget
from neighbour import Reused
from runtime_target import NAME, RuntimeTarget

TARGETS: list[Reused] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the targets after the last test of their folder: as long as they run, their neighbours compute."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for reused in TARGETS:
            reused.end()


@contextmanager
def kept(make):
    """A target for many attacks."""
    with Reused(make) as reused:
        TARGETS.append(reused)
        yield reused
        TARGETS.remove(reused)


@pytest.fixture(scope="session")
def gateway_session(tmp_path_factory):
    with kept(lambda: GatewayTarget(tmp_path_factory.mktemp("gateway"))) as reused:
        yield reused


@pytest.fixture
def gateway(gateway_session):
    """A gateway that earlier attacks have left well; its log is shown where a test fails."""
    target = gateway_session.get()
    yield target
    target.reset()
    print(target.gateway.output())


@pytest.fixture(scope="session")
def attacked_model(tmp_path_factory):
    """The folder of a small model with a long context."""
    return write_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="session")
def runtime_session(tmp_path_factory, attacked_model):
    with kept(lambda: RuntimeTarget(tmp_path_factory.mktemp("runtime"), attacked_model)) as reused:
        yield reused


@pytest.fixture
def runtime(runtime_session):
    """A runtime that earlier attacks have left well; its log is shown where a test fails."""
    target = runtime_session.get()
    yield target
    print(target.runtime.output())
