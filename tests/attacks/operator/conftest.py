"""The operator as a process against a real API server, started once for this folder.

Run when asked for with ``-m cluster``, as ``make test-cluster`` does, which builds the server's binaries.
Needs neither root nor a cluster.
"""

import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from api_server import Operator, api_server, missing_binary, until
from neighbour import Reused
from operator_target import OperatorTarget

NUMBERS = count()


def pytest_collection_modifyitems(config, items):
    is_asked_for = "cluster" in config.option.markexpr
    for item in items:
        if Path(__file__).parent in Path(item.path).parents and "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            if not is_asked_for:
                item.add_marker(pytest.mark.skip(reason="needs -m cluster (make test-cluster)"))


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
    server.delete_namespace(name)


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


@pytest.fixture(scope="module")
def target_session(server, tmp_path_factory):
    """Ends with its file: its operator serves every namespace, also of tests with their own operators."""
    with Reused(lambda: OperatorTarget(server, tmp_path_factory.mktemp("operator"))) as reused:
        yield reused


@pytest.fixture
def target(target_session):
    """An operator with neighbours that watch it, left well by earlier attacks."""
    operator_target = target_session.get()
    yield operator_target
    operator_target.reset()
    print(operator_target.operator.output())
