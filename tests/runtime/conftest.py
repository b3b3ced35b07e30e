"""Fixtures of the server's tests: a served model whose engine is scripted."""

import sys
from pathlib import Path

import httpx
import pytest

# Helpers, and the folders of tests whose cases other tests run under other conditions.
sys.path.insert(0, str(Path(__file__).parent / "engine/scheduling"))
sys.path.insert(0, str(Path(__file__).parent / "engine"))
sys.path.insert(0, str(Path(__file__).parent / "models"))
sys.path.insert(0, str(Path(__file__).parent / "quantize"))
sys.path.insert(0, str(Path(__file__).parent / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))  # emulated_gpu, which imports ops/cuda
sys.path.insert(0, str(Path(__file__).parent / "support/markup"))
sys.path.insert(0, str(Path(__file__).parent / "support/sdk_fields"))
from fake_engine import END, live_server, tokens_of, write_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(tiny_model):
    """One server a test file; its script is reset by ``api``."""
    with live_server(tiny_model) as running:
        yield running


@pytest.fixture
def api(server):
    """An HTTP client of the server, whose engine again says "Hello, world"."""
    engine = server.engine
    engine.script = lambda _: [*tokens_of("Hello, world"), END]
    engine.delay_s, engine.cached_tokens, engine.fails_with = 0.0, 0, ""
    engine.refuses_with = "error"
    engine.submitted.clear()
    engine.aborted.clear()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
