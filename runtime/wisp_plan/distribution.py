"""Name and version of the distribution that holds every package of ours, and how to install more of it.

On PyPI ``wisp`` is another project. Import packages and commands keep their names.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

NAME = "wisp-serving"
LOCKED = {"cuda": "run-gpu.txt"}
"""Extras that a clone installs from a file of pinned versions, as the README says."""


def version() -> str:
    """Return the installed version."""
    return metadata.version(NAME)


def install_command(extra: str) -> str:
    """Return how to install an extra, from the clone or from the release's wheel that this code runs from."""
    if (Path(__file__).parents[2] / "pyproject.toml").exists():
        if extra in LOCKED:
            return f"pip install --require-hashes -r .ci/requirements/{LOCKED[extra]} in the clone"
        return f"pip install -e '.[{extra}]' in a clone"
    return f"pip install '{NAME.replace('-', '_')}-{version()}-py3-none-any.whl[{extra}]' of the release"
