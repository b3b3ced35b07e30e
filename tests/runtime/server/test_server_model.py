"""The whole runtime as its users start it: ``wisp-runtime serve`` with SmolLM2 on the CPU."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import jsonschema
import openai
import pytest

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": "smollm2", "temperature": 0, "max_tokens": 24}


class Runtime:
    """A running ``wisp-runtime serve``; stderr is read as it comes."""

    def __init__(self, model: Path, *flags: str) -> None:
        command = [
            sys.executable,
            "-c",
            "from wisp_runtime.cli.main import main; main()",
            "serve",
            str(model),
        ]
        command += [
            "--served-name",
            "smollm2",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--device",
            "cpu",
            *flags,
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, timeout_s: float = 60) -> re.Match:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if match := re.search(pattern, "".join(self.lines)):
                return match
            assert self.process.poll() is None, self.lines
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} did not come: {self.lines}")

    def wait_ready(self) -> str:
        url = self.wait_for(r"listening on (\S+)")[1]
        self.wait_for("ready after")
        deadline = time.monotonic() + 60
        while httpx.get(f"{url}/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return url

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = [int(child) for child in children if b"engine.process" in _command(child)]
        return pid


def _load_once(url: str, is_so, timeout_s: float = 60) -> dict:
    """Return the engine's load as soon as a claim on it holds."""
    deadline = time.monotonic() + timeout_s
    while not is_so(load := httpx.get(f"{url}/state", timeout=timeout_s).json()["load"]):
        assert time.monotonic() < deadline, load
        time.sleep(0.02)
    return load


def _kill_the_engine_once_it_runs(running: Runtime, url: str) -> None:
    _load_once(url, lambda load: load["running"] and load["generatedTokensTotal"])
    os.kill(running.engine_pid(), signal.SIGKILL)


def _command(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def runtime(model, *flags):
    running = Runtime(model, *flags)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def served(smollm2_dir):
    with runtime(smollm2_dir, "--max-context", "2048", "--kv-cache-memory", "256MiB") as running:
        yield running.wait_ready()


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_it_completes_a_question(client):
    answer = client.chat.completions.create(messages=QUESTION, **GREEDY)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stop", [None, ["."], ["Paris", "zebra"], ["capital of F"]])
@pytest.mark.parametrize(
    "question", ["Write the word for cat in Japanese, and an emoji.", "What is the capital of France?"]
)
def test_streamed_and_collected_are_the_same_text(client, question, stop):
    fields = {**GREEDY, "messages": [{"role": "user", "content": question}], "stop": stop}
    client.chat.completions.create(**fields)  # from now on both find the same prefix in the cache
    whole = client.chat.completions.create(**fields).choices[0]
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert all(text not in whole.message.content for text in stop or ())


def test_text_in_other_scripts_survives_an_echo(client):
    text = "naïve café, 日本語, 🙂 and عربى"
    answer = client.completions.create(prompt=text, echo=True, model="smollm2", max_tokens=1)
    assert answer.choices[0].text.startswith(text)


def test_a_prompt_is_scored_as_evaluation_harnesses_ask_for_it(client):
    """Context and continuation as token ids, ``max_tokens`` 0 or 1; the last lists belong to neither."""
    fields = {"model": "smollm2", "temperature": 0, "logprobs": 1, "seed": 1234}
    asked = {"prompt": "The capital of France is", "max_tokens": 6, "extra_body": {"return_token_ids": True}}
    said = client.completions.create(**fields, **asked).choices[0]
    prompt = [*said.prompt_token_ids, *said.token_ids]
    scored = client.completions.create(**fields, prompt=[prompt] * 3, max_tokens=0, echo=True).choices
    one_more = client.completions.create(**fields, prompt=prompt, max_tokens=1, echo=True).choices[0]
    begun = len(said.prompt_token_ids)
    for choice, end in (*((each, None) for each in scored), (one_more, -1)):
        lists = choice.logprobs
        assert lists.tokens[begun:end] == said.logprobs.tokens
        assert lists.token_logprobs[begun:end] == pytest.approx(said.logprobs.token_logprobs, abs=0.05)
        for best, logprob in zip(lists.top_logprobs[begun:end], lists.token_logprobs[begun:end], strict=True):
            assert list(best.values()) == [logprob]  # what is said greedily is the likeliest
        assert lists.token_logprobs[0] is lists.top_logprobs[0] is None
        assert choice.text.startswith("The capital of France is" + said.text)


def test_a_shared_prefix_is_computed_once(client, served):
    prefix = "The quick brown fox jumps over the lazy dog. " * 50
    before = httpx.get(f"{served}/state").json()["load"]["promptTokensTotal"]
    first, second = (
        client.completions.create(prompt=prefix + tail, model="smollm2", max_tokens=8, temperature=0).usage
        for tail in ("Then it rests.", "And then the dog barks loudly.")
    )
    computed = httpx.get(f"{served}/state").json()["load"]["promptTokensTotal"] - before
    cached = second.prompt_tokens_details.cached_tokens
    assert first.prompt_tokens_details.cached_tokens == 0
    assert cached >= 480
    assert computed == first.prompt_tokens + second.prompt_tokens - cached


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["happy", "sad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_follows_a_schema_at_any_temperature(client, temperature):
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Describe a person as JSON."}],
        temperature=temperature,
        seed=3,
        max_tokens=1000,  # beyond the schema's bounds, with all the spaces that may be
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
    ).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), PERSON)


def test_a_grammar_of_an_unknown_special_token_is_refused_by_the_engine(client):
    grammar = 'start: "a" <|nobody|>'
    with pytest.raises(openai.BadRequestError, match="unknown special token"):
        client.chat.completions.create(
            model="smollm2", messages=QUESTION, extra_body={"guided_grammar": grammar}
        )


def test_the_same_seed_gives_the_same_text(client):
    fields = {**GREEDY, "messages": QUESTION, "temperature": 1.2, "seed": 11}
    texts = [client.chat.completions.create(**fields).choices[0].message.content for _ in range(4)]
    assert len(set(texts[1:])) == 1  # the first may have found less of its prompt in the cache


def test_a_client_that_leaves_frees_the_engine(client, served):
    before = _load_once(served, lambda load: not load["running"])["generatedTokensTotal"]
    stream = client.completions.create(
        prompt="Once", model="smollm2", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    load = _load_once(served, lambda load: not load["running"])
    assert load["generatedTokensTotal"] - before < 1500


@pytest.mark.parametrize("stream", [False, True])
def test_kill_9_of_the_engine_is_a_clean_error_and_exit_1(smollm2_dir, tmp_path, stream):
    log = tmp_path / "termination.json"
    with runtime(smollm2_dir, "--termination-log", str(log), "--max-context", "1024") as running:
        url = running.wait_ready()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            killing = threading.Thread(target=_kill_the_engine_once_it_runs, args=(running, url))
            killing.start()
            with pytest.raises(openai.APIError, match="signal 9"):
                list(
                    client.completions.create(
                        model="smollm2", prompt="Once", max_tokens=900, stream=stream,
                        extra_body={"ignore_eos": True},
                    )
                )  # fmt: skip
        assert running.process.wait(60) == 1
    assert json.loads(log.read_text())["reason"] == "EngineDied"


def test_sigterm_lets_the_response_finish_and_exits_0(smollm2_dir):
    with runtime(smollm2_dir, "--max-context", "1024") as running:
        url = running.wait_ready()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            stream = client.completions.create(
                model="smollm2", prompt="Once", max_tokens=40, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            running.process.send_signal(signal.SIGTERM)
            *_, last = stream
        assert last.choices[0].finish_reason == "length"
        assert running.process.wait(60) == 0


def test_two_interrupts_end_it_at_once(smollm2_dir):
    with runtime(smollm2_dir, "--max-context", "1024", "--drain-timeout-s", "600") as running:
        url = running.wait_ready()
        body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.process.send_signal(signal.SIGINT)
            running.wait_for("stopping once running requests have ended; Ctrl-C again ends them at once")
            while httpx.get(f"{url}/readyz", timeout=60).status_code == 200:
                time.sleep(0.02)
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGINT)
            assert "The server is stopping" in list(lines)[-2]
        assert running.process.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "status", "reason", "says"),
    [
        (["--kv-cache-memory", "1MiB"], 3, "DoesNotFit", r"needs .* 22\.5 MiB.*1\.0 MiB.*fits with"),
        (["--max-context", "99999999"], 2, "ConfigError", "8192"),
        (
            ["--device", "cuda"],
            1,
            "GpuUnavailable",
            "without a GPU, set --device cpu|no GPU|driver",
        ),
    ],
)
def test_a_model_that_cannot_be_served_exits_with_its_reason(
    smollm2_dir, tmp_path, flags, status, reason, says
):
    log = tmp_path / "termination.json"
    with runtime(smollm2_dir, "--termination-log", str(log), *flags) as running:
        assert running.process.wait(60) == status
    words = json.loads(log.read_text())
    assert words["reason"] == reason
    assert re.search(says, words["message"])


@pytest.mark.parametrize("after_s", [0.3, 0.6])
def test_sigterm_while_it_loads_ends_it_soon(smollm2_dir, after_s):
    with runtime(smollm2_dir) as running:
        running.wait_for("listening")
        time.sleep(after_s)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
