"""Share of the tests that each of several processes takes (``make test`` runs ``pytest -n``).

Tests of a file share fixtures, so one process takes a complete file, and the attacks on one target a complete
folder. The emulator's tests compute for seconds, so those of a function and its first parameter, a model most
often, go where a process is free.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

FOLDERS = ("tests/attacks/gateway", "tests/attacks/operator", "tests/attacks/runtime")
"""Folders whose files share a target that is expensive to start."""
SINGLE = ("tests/emulator",)
"""Folders whose tests are computations of seconds, of which a function's have models in common."""
LONG = (*FOLDERS, *SINGLE)
"""Folders that begin first, so that none of them is the last to end; the longest first."""


def share_of(nodeid: str) -> str:
    """Return the name that the tests of one process have in common."""
    file = nodeid.partition("::")[0]
    if file.startswith(SINGLE):
        return re.match(r"[^[]*(\[[^-\]]*)?", nodeid)[0]
    return next((folder for folder in FOLDERS if file.startswith(folder)), file)


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests in place: those of :data:`LONG` first, all others in their order."""
    rank = {folder: place for place, folder in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        parents = (str(parent) for parent in PurePosixPath(item.nodeid.partition("::")[0]).parents)
        return min((rank[parent] for parent in parents if parent in rank), default=len(rank))

    items.sort(key=place)


def make_scheduler(config: pytest.Config, log: object) -> object:
    """Return xdist's scheduler by scope, with :func:`share_of` as the scope and in collection order."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    config.option.loadscopereorder = False
    return ByShare(config, log)
