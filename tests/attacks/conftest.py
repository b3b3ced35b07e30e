"""Targets of the attacks: real processes, started once a session, with neighbours that watch them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
from gateway_target import GatewayTarget
from neighbour import Reused


@pytest.fixture(scope="session")
def gateway_session(tmp_path_factory):
    with Reused(lambda: GatewayTarget(tmp_path_factory.mktemp("gateway"))) as reused:
        yield reused


@pytest.fixture
def gateway(gateway_session):
    """A gateway that earlier attacks have left well; its log is shown where a test fails."""
    target = gateway_session.get()
    yield target
    target.reset()
    print(target.gateway.output())
