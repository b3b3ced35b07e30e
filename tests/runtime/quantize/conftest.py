"""A small 16-bit checkpoint to quantize."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_checkpoint import write_checkpoint


@pytest.fixture
def source(tmp_path):
    write_checkpoint(tmp_path / "source")
    return tmp_path / "source"
