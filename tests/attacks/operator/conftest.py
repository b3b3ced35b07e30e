"""The operator as a process against a real API server, started once for this folder.

Skipped where the server's binaries are missing; ``make test-cluster`` builds them.
"""

import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from api_server import Operator, api_server, missing_binary, until

NUMBERS = count()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    if problem := missing_binary():
        pytest.skip(problem)
    with api_server(tmp_path_factory.mktemp("api-server")) as running:
        yield running


@pytest.fixture
def namespace(server):
    """A namespace of the test's own."""
    name = f"attack-{next(NUMBERS)}"
    server.kubectl("create", "namespace", name)
    yield name
    server.kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture
def start_operator(server, namespace):
    """Start replicas of the operator whose Lease is in the test's namespace; all are ended afterwards."""
    started = []

    def start(identity="one", *flags):
        quick = ("--lease-s", "2", "--renew-s", "0.5")
        started.append(Operator(server, namespace, identity, *quick, *flags))
        return started[-1]

    yield start
    for replica in started:
        with suppress(ProcessLookupError):
            replica.stop()
        print(f"--- log of {replica.identity}\n{replica.log.read_text()[-6000:]}")


@pytest.fixture
def operator(start_operator):
    """One replica that leads."""
    replica = start_operator()
    until(replica.leads)
    return replica
