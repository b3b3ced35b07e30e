"""Fixtures of every test folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of the example model; made on first use, which takes some ten seconds, then cached.

    Tests that ask for it carry the marker ``model``.
    """
    from wisp_runtime.convert.example import example_model

    return example_model()
