"""A pytest plugin for runs under compute-sanitizer: fewer cases, and memory that is checked to the byte.

    PYTHONPATH=tests/bench compute-sanitizer --tool memcheck \\
        python3 -m pytest -p under_sanitizer tests/gpu/elementwise/test_norms.py

CuPy's pool suballocates large blocks, in which a kernel may run over its array unseen: without
the pool each array is an allocation of its own. A sanitizer makes kernels ten to a hundred times slower: of
each test the first of its cases stays, and the last with each kernel; with ``WISP_SANITIZER`` set tests
choose smaller sizes.
"""

from __future__ import annotations

import os

import pytest

KERNEL_PARAMETERS = ("attend", "width", "row_tiles", "size")
"""Parameters of tests that choose the kernel: each of their values stays."""
LEFT_OUT = {
    "test_a_kernel_that_reads_a_wrong_address_ends_the_process_with_a_name": (
        "reads a wrong address on purpose: the sanitizer reports that, and ends the process in its own way"
    ),
    "test_a_launch_is_ordered_with_copies_and_can_be_captured": (
        "allocates while it captures, which CuPy's pool may and cudaMalloc may not"
    ),
    "test_a_block_that_never_arrives_ends_the_step_in_a_named_reason": (
        "ends a step in a trap on purpose: the sanitizer reports that of every thread"
    ),
}
"""Tests that no sanitizer can run, and why."""


def pytest_configure(config: pytest.Config) -> None:
    """Take CuPy's pool away."""
    os.environ.setdefault("WISP_SANITIZER", "1")
    import cupy

    cupy.cuda.set_allocator(None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep of each test its first case, and its last with each kernel."""
    kept = {_chosen(item): item for item in items} | {_test(item): item for item in reversed(items)}
    stays = {item.nodeid for item in kept.values() if _test(item).rpartition("::")[2] not in LEFT_OUT}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in stays])
    items[:] = [item for item in items if item.nodeid in stays]


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _chosen(item: pytest.Item) -> tuple[str, ...]:
    """Return the test and the kernel that its parameters choose."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return (_test(item), *(repr(params.get(name)) for name in KERNEL_PARAMETERS))
