"""Fixtures of every test folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # spec_changes, decode_batch

# A busy machine is no defect. In CI the examples are the same each time; elsewhere they wander and find more.
settings.register_profile("wisp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("wisp"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "wisp")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of the example model; made on first use, which takes some ten seconds, then cached.

    Tests that ask for it carry the marker ``model``.
    """
    from wisp_runtime.convert.example import example_model

    return example_model()
