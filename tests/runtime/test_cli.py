"""The command ``wisp-runtime``: fast to answer, and clear about what it does not know."""

import asyncio
import json
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from fake_engine import FakeEngine

from wisp_runtime.cli.main import COMMANDS, main
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import Fatal, Phase
from wisp_runtime.errors import PortInUse
from wisp_runtime.server.process import bound_socket, run
from wisp_runtime.server.startup_log import (
    MAX_LOG_BYTES,
    follow_phases,
    phase_line,
    report_failure,
    termination_message,
)

HEAVY = ("numpy", "starlette", "pydantic", "uvicorn", "tokenizers", "jinja2", "gguf", "huggingface_hub")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"]])
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        "import sys\nfrom wisp_runtime.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_command_named_can_be_loaded():
    for name in COMMANDS:
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_serve_says_that_a_model_may_be_a_gguf_file():
    said = CliRunner().invoke(main, ["serve", "--help"]).output
    assert "MODEL is a directory or a GGUF file, file://PATH of one," in said


@pytest.mark.parametrize("group", [[], ["kernels"], ["bench"]])
def test_every_command_has_a_one_sentence_summary(group):
    listing = CliRunner().invoke(main, [*group, "--help"], terminal_width=80).output
    lines = listing.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert lines
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


def test_an_unknown_command_is_misuse_with_the_nearest_name():
    result = CliRunner().invoke(main, ["sevre"])
    assert result.exit_code == 2
    assert "did you mean 'serve'" in result.output


def test_settings_that_cannot_be_are_in_the_termination_log_too(tmp_path):
    log = tmp_path / "end.json"
    flags = ["--deterministic", "--max-concurrent", "100", "--termination-log", str(log)]
    result = CliRunner().invoke(main, ["serve", "x", *flags])
    assert result.exit_code == 2
    told = json.loads(log.read_text())
    assert told["reason"] == "ConfigError"
    assert "--max-concurrent 100" in told["message"]


def test_a_port_in_use_is_reported_before_anything_is_loaded(tmp_path, capsys):
    async def never(_):
        raise AssertionError("the engine must not start")

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        log = tmp_path / "termination.json"
        config = ServeConfig(model="x", host="127.0.0.1", port=port, termination_log=log)
        assert run(config, never) == PortInUse.exit_code == 1
    assert f"PortInUse: port {port} on 127.0.0.1 is in use" in capsys.readouterr().err
    assert '"reason": "PortInUse"' in log.read_text()


def test_a_bug_of_the_server_still_leaves_its_reason(tmp_path, capsys):
    async def broken(_):
        raise ZeroDivisionError("oops")

    log = tmp_path / "termination.json"
    config = ServeConfig(model="x", host="127.0.0.1", port=0, termination_log=log)
    assert run(config, broken) == 1
    assert "ServerFailed: ZeroDivisionError: oops" in capsys.readouterr().err
    assert '"reason": "ServerFailed"' in log.read_text()


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_a_foreign_address_is_reported(host, capsys):
    async def never(_):
        raise AssertionError("the engine must not start")

    assert run(ServeConfig(model="x", host=host, port=0), never) == 1
    assert f"ListenFailed: cannot listen on {host}:0" in capsys.readouterr().err


def test_of_two_processes_that_bind_a_port_the_later_listener_fails(monkeypatch):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        class Late(socket.socket):
            def bind(self, address):
                super().bind(address)
                other.listen()

        monkeypatch.setattr(socket, "socket", Late)
        with pytest.raises(PortInUse), bound_socket("127.0.0.1", other.getsockname()[1]):
            pass


def test_ready_is_not_said_before_requests_are_let_in(capsys):
    async def run():
        engine = FakeEngine()
        engine.become_ready()
        is_open = False
        following = asyncio.create_task(follow_phases(engine, lambda: is_open, time.monotonic()))
        await asyncio.sleep(0.1)
        assert "ready" not in capsys.readouterr().err
        is_open = True
        await asyncio.wait_for(following, 60)

    asyncio.run(run())
    assert "ready after" in capsys.readouterr().err


def test_a_bound_socket_can_be_bound_again_at_once():
    with bound_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with bound_socket("127.0.0.1", port):
        pass


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        (Phase("import", 0.414, True), "import        0.41 s"),
        (Phase("weights", 12.3, True, 256 << 20, 256 << 20), "weights      12.30 s  256.0 MiB"),
        (Phase("weights", 1.0, True, 1 << 20, 1 << 20, "bf16"), "weights       1.00 s  1.0 MiB  bf16"),
    ],
)
def test_a_start_up_line_has_time_and_bytes(phase, line):
    assert phase_line(phase) == line


def test_the_termination_log_stays_within_kubernetes_limit():
    assert len(termination_message(Fatal("DoesNotFit", "m" * 9000, 3, {"a": "b" * 9000}))) <= MAX_LOG_BYTES


def test_a_termination_log_that_cannot_be_written_is_no_second_failure(tmp_path, caplog):
    report_failure(Fatal("EngineDied", "gone"), tmp_path / "no" / "such" / "folder")
    assert "cannot write the termination log" in caplog.text
