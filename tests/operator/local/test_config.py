"""Folders of ``wisp up`` on this machine, which are those of ``wisp-runtime``."""

import subprocess
import sys
from pathlib import Path

import pytest

from wisp_operator.local import config

RUNTIMES_FOLDER = "from wisp_runtime.config import *; print(DEFAULT_CACHE_DIR, kernels_dir())"


@pytest.mark.parametrize(
    ("caches", "folder"),
    [(None, "~/.cache/wisp"), ("", "~/.cache/wisp"), ("/srv/caches", "/srv/caches/wisp")],
)
def test_downloads_and_kernels_of_both_programs_are_in_the_users_folder_of_caches(
    monkeypatch, caches, folder
):
    for name in ("WISP_CACHE_DIR", "WISP_KERNELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    expect = Path(folder).expanduser()
    assert config.cache_dir() == expect
    assert config.kernels_environment() == {"WISP_KERNELS": f"{expect}/kernels"}
    command = [sys.executable, "-c", RUNTIMES_FOLDER]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True)
    assert runtime.stdout.split() == [str(expect), f"{expect}/kernels"]
