"""Internals of uvicorn that ``wisp_http.protocol`` derives from: names, and the order in which they act.

``.ci/release/uvicorn_versions.py`` runs this, and the tests of hostile bytes, against every release that
pyproject.toml allows. A release that fails here may not be allowed.
"""

import asyncio
import importlib.metadata
import json
import tomllib
from collections import deque
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "tests/bench/records/uvicorn.json").read_text())
HEAD = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n"
OVERRIDDEN = (
    *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing"),
    *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
    *("on_response_complete", "shutdown", "timeout_keep_alive_handler", "_unset_keepalive_if_required"),
)


class RecordingTransport(asyncio.Transport):
    """A transport that keeps what is written and done."""

    def __init__(self):
        super().__init__({"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 80)})
        self.written, self.is_closed, self.reads = b"", False, True

    def write(self, data):
        self.written += bytes(data)

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True


class Connection:
    """A connection of uvicorn's own class with an application that answers when it is let go."""

    def __init__(self):
        self.answered, self.may_answer = [], asyncio.Event()
        options = {"lifespan": "off", "ws": "none", "log_config": None, "access_log": False}
        config = uvicorn.Config(self.app, interface="asgi3", **options)
        self.state, self.transport = ServerState(), RecordingTransport()
        self.protocol = HttpToolsProtocol(config=config, server_state=self.state, app_state={})
        self.protocol.connection_made(self.transport)

    async def app(self, scope, receive, send):
        await self.may_answer.wait()
        self.answered.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def finish(self):
        self.may_answer.set()
        while self.state.tasks:
            await asyncio.gather(*self.state.tasks)


def run(scenario):
    asyncio.run(scenario())


def test_the_methods_that_we_override_or_call_are_there():
    assert [name for name in OVERRIDDEN if not callable(getattr(HttpToolsProtocol, name, None))] == []


def test_flow_control_pauses_and_resumes_reading_once():
    transport = RecordingTransport()
    flow = FlowControl(transport)
    flow.pause_reading()
    assert (flow.read_paused, transport.reads) == (True, False)
    flow.resume_reading()
    assert (flow.read_paused, transport.reads) == (False, True)


def test_a_connection_is_counted_from_its_first_moment_to_its_last():
    async def scenario():
        connection = Connection()
        protocol = connection.protocol
        assert protocol.connections is connection.state.connections
        assert protocol in protocol.connections
        assert protocol.client[0] == "192.0.2.1"
        assert isinstance(protocol.flow, FlowControl)
        assert protocol.pipeline == deque()
        assert protocol.cycle is None
        protocol.connection_lost(None)
        assert protocol not in connection.state.connections

    run(scenario)


def test_a_request_is_a_cycle_with_the_state_that_we_read_and_set():
    async def scenario():
        connection = Connection()
        protocol = connection.protocol
        protocol.data_received(b"POST /a HTTP/1.1\r\nHost: x\r\ncontent-length: 4\r\n\r\nab")
        cycle = protocol.cycle
        assert (protocol.url, protocol.headers) == (b"/a", [(b"host", b"x"), (b"content-length", b"4")])
        assert cycle.transport is connection.transport
        states = (cycle.more_body, cycle.response_started, cycle.response_complete, cycle.disconnected)
        assert states == (True, False, False, False)
        assert bytes(cycle.body) == b"ab"
        assert isinstance(cycle.message_event, asyncio.Event)
        protocol.data_received(b"cd")
        assert cycle.more_body is False
        cycle.keep_alive = False  # shutdown, with an answer under way
        await connection.finish()
        assert (cycle.response_started, cycle.response_complete) == (True, True)
        assert connection.transport.is_closed

    run(scenario)


def test_requests_behind_an_answer_wait_newest_first_and_start_in_order():
    async def scenario():
        connection = Connection()
        protocol = connection.protocol
        protocol.data_received(HEAD % b"1" + HEAD % b"2" + HEAD % b"3")
        assert [cycle.scope["path"] for cycle, _app in protocol.pipeline] == ["/3", "/2"]
        assert protocol.cycle is protocol.pipeline[0][0]
        assert not connection.transport.reads
        await connection.finish()
        assert connection.answered == ["/1", "/2", "/3"]
        assert connection.transport.reads
        assert protocol.timeout_keep_alive_task is not None
        protocol._unset_keepalive_if_required()
        assert protocol.timeout_keep_alive_task is None

    run(scenario)


def test_answers_go_out_through_the_cycles_own_transport():
    async def scenario():
        connection, other = Connection(), RecordingTransport()
        connection.protocol.data_received(HEAD % b"1")
        connection.protocol.cycle.transport = other
        await connection.finish()
        assert other.written.startswith(b"HTTP/1.1 200 ")
        assert connection.transport.written == b""
        connection.protocol._unset_keepalive_if_required()

    run(scenario)


def test_a_lost_connection_ends_its_request():
    async def scenario():
        connection = Connection()
        connection.protocol.data_received(HEAD % b"1")
        cycle = connection.protocol.cycle
        connection.protocol.connection_lost(ConnectionResetError())
        assert cycle.disconnected
        assert cycle.message_event.is_set()
        await connection.finish()

    run(scenario)


def allowed():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        line for extra in ("operator", "runtime") for line in lines[extra] if line.startswith("uvicorn")
    }
    assert len(wanted) == 1, "operator and runtime may be installed together"
    return Requirement(wanted.pop()).specifier


def test_no_release_is_allowed_that_was_not_tried():
    tried = [Version(row["version"]) for row in RECORD["rows"]]
    bounds = {bound.operator: Version(bound.version) for bound in allowed()}
    assert min(tried) <= bounds[">="]
    assert bounds["<"] == Version(f"{max(tried).major}.{max(tried).minor + 1}")
    assert Version(importlib.metadata.version("uvicorn")) in tried


def test_no_release_is_allowed_that_failed():
    failed = [row["version"] for row in RECORD["rows"] if not row["works"]]
    assert [version for version in failed if allowed().contains(version)] == []
