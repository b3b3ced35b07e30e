"""Run Claude Code, unmodified, against the server around a scripted model that thinks and calls a tool.

    npm install --prefix FOLDER @anthropic-ai/claude-code
    python tests/bench/clients/claude_code.py --claude FOLDER/node_modules/.bin/claude > rows.jsonl

It runs in a network namespace of its own, in which there is only loopback. Each row is a run: its result, and
the server's responses by path and status. The exit status is 1 if a run differs from what it should say.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime/support"))
from fake_engine import END, LiveServer, live_server, tokens_of, write_model
from loopback import isolate

CONTEXT, SHORT_CONTEXT = 1_000_000, 20_000  # a token is a byte
QUESTION = "Which number is in notes.txt?"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}<|end|>\n{% endfor %}<|start|>assistant\n"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
RUNS = (  # name, question, context, text that the result must have, exit status
    ("an answer", "Say hello.", CONTEXT, "Hello there", 0),
    ("thinking, a call of Read, and its result", QUESTION, CONTEXT, "It is 42.", 0),
    ("a prompt beyond the context", "Say hello.", SHORT_CONTEXT, "Prompt is too long", 1),
    ("/context, which counts tokens", "/context", CONTEXT, "Context Usage", 0),
)


def main() -> None:
    """Print a row for each run."""
    isolate()
    parser = argparse.ArgumentParser()
    parser.add_argument("--claude", required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row(Path(folder), asked.claude, *run) for run in RUNS]
    for row in rows:
        print(json.dumps(row))
    sys.exit(any(not row["as expected"] for row in rows))


def _row(
    folder: Path, claude: str, name: str, question: str, context: int, expected: str, status: int
) -> dict:
    project, home = folder / "project", folder / "home"
    for path in (project, home):
        path.mkdir(exist_ok=True)
    (project / "notes.txt").write_text("the number is 42\n")
    with live_server(write_model(folder / "model", TEMPLATE)) as server:
        server.engine.info = replace(server.engine.info, max_context=context)
        server.engine.script = lambda submit: [*tokens_of(_answer(submit.prompt, project)), END]
        done = subprocess.run(
            [claude, "-p", question, "--allowedTools", "Read"],
            env=_environment(server.url, home),
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        result = done.stdout.strip()
        return {
            "what": name,
            "as expected": expected in result and done.returncode == status,
            "result": result.splitlines()[0] if result else "",
            "responses": _responses(server),
            "prompt tokens": [len(submit.prompt) for submit in server.engine.submitted],
            "shared with the prompt before": _shared_tokens(server),
        }


def _answer(prompt: tuple[int, ...], project: Path) -> str:
    """Return what the model says: it thinks and reads the file, then says what is in it."""
    text = bytes(token for token in prompt if token < 256).decode()
    if QUESTION not in text:
        return "Hello there"
    if "number is 42" in text:
        return "<think>\nThere it is.\n</think>\n\nIt is 42."
    call = {"name": "Read", "arguments": {"file_path": str(project / "notes.txt")}}
    return f"<think>\nI must look.\n</think>\n\nI look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _environment(url: str, home: Path) -> dict[str, str]:
    switches = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        **dict.fromkeys(names, "tiny"),
        **dict.fromkeys(switches, "1"),
    }


def _responses(server: LiveServer) -> dict[str, int]:
    pattern = r'wisp_http_responses_total\{.*path="([^"]+)",status="(\d+)"\} (\d+)'
    counted = re.findall(pattern, httpx.get(f"{server.url}/metrics").text)
    return {f"{path} {status}": int(count) for path, status, count in counted}


def _shared_tokens(server: LiveServer) -> list[int]:
    prompts = [submit.prompt for submit in server.engine.submitted]
    return [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pair, strict=False)))
        for pair in pairwise(prompts)
    ]


if __name__ == "__main__":
    main()
