"""A real Prometheus that scrapes a ``wisp up`` and the operator's exporter; none of it needs the cluster.

Alone, on any machine: ``KUBECONFIG= .venv/bin/python -m pytest -m cluster tests/cluster/prometheus``.
"""

import pytest
from boards import Boards


@pytest.fixture(scope="session", autouse=True)
def crd():
    """Nothing here asks an API server."""


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    with Boards(tmp_path_factory.mktemp("boards")) as running:
        yield running
