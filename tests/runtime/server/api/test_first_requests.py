"""Endpoints that are imported at their first request: two at once are answered, and no other one waits."""

import asyncio
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from threading import Event
from types import SimpleNamespace

import pytest

from wisp_runtime.server.http import first_request

SUPPORT = Path(__file__).parents[2] / "support"
SLOW = """
import gate
gate.begun.append(1)
assert gate.opened.wait(60), "the event loop has waited for the import"
async def respond(service, request):
    return service, request
"""


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """The gate at which the import of the module ``imported_slowly`` waits."""
    gate = SimpleNamespace(begun=[], opened=Event())
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.setattr(first_request, "_IMPORTED", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_slowly.py").write_text(SLOW)
    yield gate
    sys.modules.pop("imported_slowly", None)


def test_two_first_requests_wait_for_one_import_and_the_event_loop_for_none(gate):
    endpoint = first_request.at_first_request("imported_slowly", "respond")

    async def ask():
        asked = asyncio.gather(endpoint("service", 1), endpoint("service", 2))
        while not gate.begun:
            await asyncio.sleep(0.01)
        gate.opened.set()
        return await asked

    assert asyncio.run(ask()) == [("service", 1), ("service", 2)]
    assert gate.begun == [1]


ASK_EVERYTHING_AT_ONCE = """
    import sys, tempfile
    sys.path.insert(0, sys.argv[1])
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    import httpx
    from fake_engine import live_server, write_model

    TEXT = {"model": "tiny", "input": "a"}
    CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    ASKED = [
        ("/v1/responses", TEXT), ("/v1/responses/input_tokens", TEXT), ("/v1/embeddings", TEXT),
        ("/v1/score", {"model": "tiny", "text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}),
        ("/v1/messages", {**CHAT, "max_tokens": 9}), ("/v1/messages/count_tokens", CHAT),
        ("/v1/tokenize", CHAT), ("/v1/detokenize", {"tokens": [104]}),
        ("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "tiny", "prompt": "a"}),
        ("/openapi.json", None),
    ]
    RARE = {"responses.endpoints", "anthropic.endpoints", "embeddings", "scores", "tokenization"}
    with tempfile.TemporaryDirectory() as folder, live_server(write_model(Path(folder))) as server:
        server.wait_until(lambda: server.server.service.status == "ready")
        print({name for name in RARE if f"wisp_runtime.server.api.{name}" in sys.modules})
        from wisp_runtime.server.parsing.chat_request import ChatRequest
        from wisp_runtime.server.parsing.completion_request import CompletionRequest
        from wisp_runtime.server.parsing.strict_model import is_built
        print(is_built(ChatRequest) and is_built(CompletionRequest))
        def ask(path, body):
            method = "GET" if body is None else "POST"
            return path, httpx.request(method, server.url + path, json=body, timeout=60).status_code
        with ThreadPoolExecutor(32) as threads:
            answers = list(threads.map(lambda asked: ask(*asked), [*ASKED, *ASKED]))
        print(sorted({status for _, status in answers}), [path for path, status in answers if status != 200])
"""


def test_a_start_imports_no_rare_endpoint_and_first_requests_of_all_at_once_are_answered():
    script = [sys.executable, "-c", dedent(ASK_EVERYTHING_AT_ONCE), str(SUPPORT)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["set()", "True", "[200] []"], done.stderr
