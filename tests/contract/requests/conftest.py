"""Fixtures: a gateway in front of a runtime."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for two_programs
from two_programs import pair


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with pair(tmp_path_factory.mktemp("programs")) as both:
        yield both
