"""Modules that each program imports at start are bounded: a dependency that grows shows when it is raised."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"opentelemetry", "torch", "pandas", "IPython", "matplotlib"}


@pytest.mark.parametrize(
    ("program", "max_modules", "never"),
    [
        ("operator", 1100, {"numpy", "tokenizers", "starlette", "uvloop"}),
        ("gateway", 400, {"numpy", "kubernetes", "kopf", "pydantic", "starlette", "requests"}),
        ("runtime", 840, {"kubernetes", "kopf", "requests", "aiohttp", "cupy", "rich", "gguf"}),
        ("wisp", 130, {"kubernetes", "kopf", "numpy", "aiohttp", "pydantic", "rich"}),  # answers --help
    ],
)
def test_a_program_imports_no_more_than_it_needs(monkeypatch, program, max_modules, never):
    monkeypatch.syspath_prepend(str(ROOT / ".ci/release"))
    imports = importlib.import_module("imports")
    monkeypatch.delitem(sys.modules, "imports")
    _, _, names = imports.loaded(program)
    assert imports.packages(names) & (never | HEAVY) == set()
    assert not any(name.startswith("google.") for name in names)  # kubernetes asks for google.auth
    assert len(names) <= max_modules
