"""A small 16-bit checkpoint to quantize."""

import pytest
from small_checkpoint import write_checkpoint


@pytest.fixture
def source(tmp_path):
    write_checkpoint(tmp_path / "source")
    return tmp_path / "source"
