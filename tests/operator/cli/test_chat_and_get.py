"""``wisp chat`` and ``wisp get`` as programs, against a gateway of a few lines."""

import codecs
import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from wisp_operator.cli.display import rows, table

WISP = Path(sys.executable).with_name("wisp")
MODEL = {"namespace": "default", "name": "tiny", "servedName": "tiny", "state": "Ready", "reason": "Serving"}


def event(**body):
    return f"data: {json.dumps(body)}\n\n".encode()


def says(*texts):
    deltas = [event(choices=[{"index": 0, "delta": {"content": text}}]) for text in texts]
    return b": waking\n\n" + b"".join(deltas) + b"data: [DONE]\n\n"


class Fake(ThreadingHTTPServer):
    """Answers ``/state``, and every completion with :attr:`answer`; keeps the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer, self.status, self.asked = says("Hello ", "there."), 200, []
        self.refused, self.delay_s, self.content_types = {}, 0, []
        self.state = {"gateway": "gw", "status": "ready", "models": [MODEL]}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        state = self.server.state
        self.reply(200, state if isinstance(state, bytes) else json.dumps(state).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((body, self.headers.get("authorization")))
        self.server.content_types.append(self.headers["content-type"])
        time.sleep(self.server.delay_s)
        refused = next((error for field, error in self.server.refused.items() if field in body), None)
        if refused:
            self.reply(400, json.dumps(refused).encode())
        else:
            self.reply(self.server.status, self.server.answer)

    def reply(self, status, data):
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def gateway():
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def wisp(*arguments, given="", environment=None):
    return subprocess.run(
        [str(WISP), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_what_is_piped_in_is_one_message_and_the_answer_alone_is_on_stdout(gateway):
    done = wisp("chat", "tiny", "--url", gateway.url, given="hi\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello there.\n", "")
    body, _ = gateway.asked[0]
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["stream"] is True


@pytest.mark.parametrize(
    ("names", "status", "says"),
    [
        (["tiny"], 0, ""),
        (["tiny", "other"], 2, "Missing argument 'MODEL': name one of tiny, other."),
        ([], 2, "Missing argument 'MODEL': the gateway serves none."),
    ],
)
def test_the_only_model_needs_no_name(gateway, names, status, says):
    gateway.state["models"] = [MODEL | {"name": name, "servedName": name} for name in names]
    done = wisp("chat", "--url", gateway.url, "--once", "hi")
    assert done.returncode == status
    assert says in " ".join(done.stderr.split())
    assert [body["model"] for body, _ in gateway.asked] == (["tiny"] if not status else [])


def test_once_asks_and_leaves_with_what_the_user_chose(gateway):
    wisp("chat", "tiny", "--url", gateway.url, "--once", "hi", "--system", "Be brief.", "--max-tokens", "5")
    body, _ = gateway.asked[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["max_tokens"], body["temperature"]) == (5, 0.7)


def test_an_answer_is_bounded_and_one_that_meets_the_bound_says_so(gateway):
    gateway.answer = says("Hello").replace(
        b"data: [DONE]", event(choices=[{"delta": {}, "finish_reason": "length"}]) + b"data: [DONE]"
    )
    done = wisp("chat", "tiny", "--url", gateway.url, "--once", "hi")
    assert gateway.asked[0][0]["max_tokens"] == 1024
    assert (done.returncode, done.stdout) == (0, "Hello\n")
    assert done.stderr == "(stopped at 1024 tokens; --max-tokens raises it)\n"


def test_where_the_context_leaves_less_than_the_bound_the_context_is_the_bound(gateway):
    gateway.refused = {"max_tokens": {"error": {"message": "too long", "code": "context_length_exceeded"}}}
    done = wisp("chat", "tiny", "--url", gateway.url, "--once", "hi")
    assert (done.returncode, done.stdout) == (0, "Hello there.\n")
    assert ["max_tokens" in body for body, _ in gateway.asked] == [True, False]


@pytest.mark.parametrize(
    ("key", "says"), [("", "wants an API key. Set WISP_API_KEY"), ("k", "does not know the key")]
)
def test_a_gateway_that_wants_a_key_is_given_it_by_the_environment(gateway, key, says):
    gateway.status = 401
    gateway.answer = (
        b'{"error": {"message": "Send it as \'Authorization: Bearer KEY\'.", "code": "invalid_api_key"}}'
    )
    done = wisp(
        "chat", "tiny", "--url", gateway.url, "--once", "hi", environment={**os.environ, "WISP_API_KEY": key}
    )
    stderr = " ".join(done.stderr.split())
    assert (done.returncode, says in stderr, "Authorization" in stderr) == (1, True, False), stderr


def test_an_unknown_model_is_reported_with_the_nearest_name(gateway):
    gateway.status = 404
    gateway.answer = json.dumps({"error": {"message": "no", "code": "model_not_found"}}).encode()
    done = wisp("chat", "tinny", "--url", gateway.url, "--once", "hi")
    assert done.stderr == (
        "wisp chat: no model 'tinny' here; did you mean 'tiny'? wisp get lists those that are served.\n"
    )


def _take_terminal():
    """Let Ctrl-C reach the process, also where a shell in whose background the tests run ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*arguments):
    """``wisp`` on a terminal of its own; ``read`` returns its output."""
    controller, side = pty.openpty()
    process = subprocess.Popen(
        [str(WISP), *arguments],
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(side)
    shown, decoder = "", codecs.getincrementaldecoder("utf-8")()

    def until(text):
        nonlocal shown
        deadline = time.monotonic() + 60
        while text not in shown:
            ready, _, _ = select.select([controller], [], [], deadline - time.monotonic())
            assert ready, (text, shown)
            shown += decoder.decode(os.read(controller, 4096))
        _, _, shown = shown.partition(text)

    def press(keys):
        """Press keys once the process waits: a signal before that is lost in Python's readline."""
        asleep, deadline = 0, time.monotonic() + 60
        while asleep < 10:
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
            stat = Path(f"/proc/{process.pid}/stat").read_text()
            asleep = asleep + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        os.write(controller, keys)

    try:
        yield until, press
    finally:
        process.kill()
        process.wait(60)
        os.close(controller)


def test_ctrl_c_says_how_to_leave_and_that_a_waking_model_goes_on(gateway):
    gateway.state = {"gateway": "gw", "models": [{**MODEL, "state": "Waking", "phase": "weights"}]}
    gateway.delay_s = 30
    with terminal("chat", "tiny", "--url", gateway.url) as (until, press):
        until("> ")
        press(b"\x03")
        until("Ctrl-D leaves.")
        until("> ")
        press(b"hello\r")
        until("waking tiny: loading weights")
        press(b"\x03")
        until("tiny goes on waking")
        until("> ")


def test_the_key_of_a_protected_gateway_comes_from_the_environment(gateway):
    wisp(
        "chat",
        "tiny",
        "--url",
        gateway.url,
        "--once",
        "x",
        environment={**os.environ, "WISP_API_KEY": "s3cret"},
    )
    assert gateway.asked[0][1] == "Bearer s3cret"


ERROR = {"error": {"message": "Model tiny cannot start now: needs 17.1 GiB.", "code": "model_failed"}}


@pytest.mark.parametrize(
    ("status", "answer", "stdout", "said"),
    [
        (503, json.dumps(ERROR).encode(), "", "needs 17.1 GiB."),
        (502, b"<html>", "", "the gateway answered HTTP 502"),
        (200, says("Hel").split(b"data: [DONE]")[0] + event(**ERROR), "Hel\n", "needs 17.1 GiB."),
        (200, says("Hel").split(b"data: [DONE]")[0], "Hel\n", "ended in the middle"),
    ],
)
def test_an_error_is_a_sentence_on_stderr_and_exit_code_one(gateway, status, answer, stdout, said):
    gateway.status, gateway.answer = status, answer
    done = wisp("chat", "tiny", "--url", gateway.url, "--once", "hi")
    assert (done.returncode, done.stdout) == (1, stdout)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("get",), ("chat", "tiny", "--once", "hi")])
def test_a_missing_gateway_is_reported_with_the_remedy(command):
    done = wisp(*command, "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "no gateway answers at http://127.0.0.1:9" in done.stderr
    assert "wisp up model.yaml" in done.stderr


def test_the_call_that_wisp_up_prints_can_be_pasted(gateway):
    """Text as a narrow terminal shows it, with the spaces that fill its lines."""
    row = rows.read({"models": [MODEL]})[0]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(table.render([row], gateway.url, {}, []))
    _, _, printed = console.file.getvalue().partition("call  ")
    done = subprocess.run(["bash", "-c", printed], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Hello" in done.stdout
    body, _ = gateway.asked[0]
    assert (body["model"], body["messages"][0]["content"]) == ("tiny", "Hi")
    assert gateway.content_types == ["application/json"]


def test_nothing_piped_in_is_misuse(gateway):
    assert wisp("chat", "tiny", "--url", gateway.url).returncode == 2


def test_get_lists_models_as_a_table_and_as_json(gateway):
    done = wisp("get", "--url", gateway.url)
    assert done.stdout.splitlines()[1].split()[:4] == ["default", "tiny", "0/0", "Ready"]
    assert json.loads(wisp("get", "--url", gateway.url, "--json").stdout) == gateway.state


def test_get_of_an_empty_gateway_says_how_to_begin(gateway):
    gateway.state = {"gateway": "gw", "models": []}
    assert "wisp up model.yaml" in wisp("get", "--url", gateway.url).stdout


@pytest.mark.parametrize("answer", [b'{"hello": "I am a web shop"}', b"<html>\n<p>a web shop</p>\n</html>"])
@pytest.mark.parametrize("command", [["get"], ["chat", "tiny", "--once", "hi"]])
def test_something_else_that_listens_there_is_not_taken_for_a_gateway(gateway, command, answer):
    gateway.state = gateway.answer = answer
    done = wisp(*command, "--url", gateway.url)
    assert done.returncode == 1
    assert "is not a Wisp gateway" in done.stderr
    assert "Traceback" not in done.stderr


def test_watch_prints_again_only_what_changed(gateway):
    process = subprocess.Popen(
        [str(WISP), "get", "--watch", "--url", gateway.url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert "Ready" in process.stdout.readline() + process.stdout.readline()
        gateway.state = {"gateway": "gw", "models": [{**MODEL, "state": "Asleep"}]}
        assert "Asleep" in process.stdout.readline() + process.stdout.readline()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
