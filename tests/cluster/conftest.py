"""A cluster to test against: the one of KUBECONFIG, normally tests/cluster/node's.

Only run when asked for with ``-m cluster``, since a KUBECONFIG may name a cluster that is no plaything.
Whatever talks to the test node runs inside its network namespace, so these tests do too:
``eval "$(tests/cluster/node/env.sh)"; inside .venv/bin/python -m pytest -m cluster tests/cluster``.
"""

import os
import subprocess
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
import counts
import dump
from counts import record  # noqa: F401
from kube import FAKE_IMAGE, NODE_RUN, is_established, kubectl, until
from namespaces import remove_namespace
from operator_process import KeptOperator, OperatorProcess
from release import clients, release  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
KEPT = KeptOperator()
SOCKET = NODE_RUN / "containerd.sock"


def pytest_collection_modifyitems(config, items):
    is_asked_for = "KUBECONFIG" in os.environ and "cluster" in config.option.markexpr
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.cluster)
            if not is_asked_for:
                item.add_marker(
                    pytest.mark.skip(reason="needs KUBECONFIG and -m cluster (make test-cluster)")
                )
    # The operator of a release serves the complete cluster, so tests with their own operator go first.
    items.sort(key=lambda item: "release" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and "release" in getattr(item, "fixturenames", ()):
        report.sections.append(("the cluster at that moment", dump.cluster()))
    return report


def pytest_terminal_summary(terminalreporter):
    outcomes = {name: len(terminalreporter.getreports(name)) for name in counts.OUTCOMES}
    if counts.ROWS:
        terminalreporter.section("counted on the cluster")
        terminalreporter.write_line(counts.table())
        counts.write_if_asked(outcomes)


@pytest.fixture(scope="session", autouse=True)
def crd():
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds/inferencemodels.yaml"))
    until(lambda: is_established("inferencemodels.wisp.dev"))


@pytest.fixture(scope="session")
def fake_image(tmp_path_factory):
    """The fake runtime on the node; built from tests/cluster/fake_runtime with Go."""
    if not SOCKET.exists():
        pytest.skip(f"only tests/cluster/node can be given the image {FAKE_IMAGE}")
    folder = tmp_path_factory.mktemp("image")
    binary, archive = folder / "wisp-runtime", folder / "fake.tar"
    build = ["go", "build", "-ldflags", "-s -w", "-o", str(binary), "."]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(build, cwd=ROOT / "tests/cluster/fake_runtime", check=True, env=environment)
    image = [sys.executable, str(ROOT / "tests/cluster/node/image.py"), str(archive), FAKE_IMAGE]
    subprocess.run([*image, "/bin/wisp-runtime", f"{binary}=/bin/wisp-runtime"], check=True)
    load = ["ctr", "-a", str(SOCKET), "-n", "k8s.io", "images", "import", str(archive)]
    subprocess.run(load, check=True, capture_output=True)
    return FAKE_IMAGE


@contextmanager
def fresh_namespace(name):
    if kubectl("create", "namespace", name, check=False).returncode:
        remove_namespace(name)  # that of the test's first run
        kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture
def namespace(request):
    """A namespace of the test's own."""
    with fresh_namespace(name_of(request)) as made:
        yield made


@pytest.fixture(scope="module")
def shared_namespace(request):
    """One namespace for the tests of a file that leave nothing behind in it."""
    with fresh_namespace(name_of(request)) as made:
        yield made


def name_of(request):
    """A namespace's name from that of a test or of a test file; a row of a table has one of its own."""
    row = zlib.crc32(request.node.name.encode()) % 1000
    name = request.node.name.split("[")[0].rpartition("/")[2].removesuffix(".py").removeprefix("test_")
    return f"{name.replace('_', '-')[:45].strip('-')}-{row}"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the kept operator after the last test of a folder: it serves every namespace."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        KEPT.end()


@pytest.fixture
def no_kept_operator(fake_image):
    """No operator but those that the test starts, which run the fake runtime."""
    KEPT.end()


@pytest.fixture
def start_operator(no_kept_operator, tmp_path, namespace):
    """Start replicas of the operator; all are ended afterwards, and their logs shown if the test failed."""
    started = []

    def start(identity="one", *flags):
        operator_process = OperatorProcess(
            tmp_path / f"{identity}-{len(started)}.log", namespace, identity, *flags
        )
        started.append(operator_process)
        return operator_process

    yield start
    for operator_process in started:
        if operator_process.process.poll() is None:
            operator_process.kill()
        print(f"--- log of {operator_process.identity}\n{operator_process.log.read_text()[-6000:]}")


@pytest.fixture(scope="session")
def kept_operator(fake_image, tmp_path_factory):
    """Gives the operator that tests share, started anew where one of them ended it."""
    with fresh_namespace(KEPT.namespace):
        yield lambda *flags: KEPT.get(tmp_path_factory.mktemp("operator"), *flags)
        KEPT.end()


@pytest.fixture
def operator(kept_operator):
    """One replica that leads; it has served earlier tests."""
    operator_process = kept_operator()
    shown = operator_process.log.stat().st_size
    yield operator_process
    print(f"--- log of the operator\n{operator_process.log.read_text()[shown:][-6000:]}")
