"""Targets of the attacks: real processes, started once a session, with neighbours that watch them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
from gateway_target import GatewayTarget


@pytest.fixture(scope="session")
def gateway_session(tmp_path_factory):
    target = GatewayTarget(tmp_path_factory.mktemp("gateway"))
    yield target
    target.close()


@pytest.fixture
def gateway(gateway_session):
    """The gateway of the session; its log is shown where a test fails."""
    yield gateway_session
    print(gateway_session.gateway.output())
