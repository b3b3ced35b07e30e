"""A pytest plugin for runs under compute-sanitizer: fewer cases, and memory that is checked to the byte.

    PYTHONPATH=tests/bench compute-sanitizer --tool memcheck \\
        python3 -m pytest -p under_sanitizer tests/gpu/test_norms.py

CuPy's pool hands out pieces of large allocations, in which a kernel may run over its array unseen: without
the pool each array is an allocation of its own. A sanitizer makes kernels ten to a hundred times slower: of
each test the first and the last of its cases stay, and with ``WISP_SANITIZER`` set tests may choose smaller
sizes.
"""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Take CuPy's pool away."""
    os.environ.setdefault("WISP_SANITIZER", "1")
    import cupy

    cupy.cuda.set_allocator(None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first and the last case of each test."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item.nodeid for listed in cases.values() for item in (listed[0], listed[-1])}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
