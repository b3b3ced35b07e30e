"""The page for developers of agents: each of its blocks runs as it is written, but for the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Served

PAGE = Path(__file__).parents[2] / "docs/agents.md"
BLOCKS = re.findall(r"^## (.*?)\n.*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_its_blocks():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[title for title, _ in BLOCKS])
def test_a_block_runs_and_prints(block: str, smollm2: Served):
    program = block.replace("http://127.0.0.1:8080", smollm2.url)
    assert program != block
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    print(ran.stdout)
