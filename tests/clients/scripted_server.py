"""The real server around a scripted model, once for each family of tool markups.

    python tests/clients/scripted_server.py     prints {family: URL}, serves until its standard input ends

The model plays an agent's part: once a tool has answered, it repeats the answer; if it has tools, it calls
the first, with the JSON that the user's message names behind ``JSON:``; otherwise it answers with that JSON.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime/support"))
from fake_engine import END, live_server, tokens_of, write_model

from wisp_runtime.engine.transport.messages import Submit

MAX_CONTEXT = 1 << 16
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
TOOL = re.compile(r'<tools>\n\{.*?"name": "([^"]+)"', re.DOTALL)
JSON = re.compile(r"JSON:(\{.*?\})(?:<|\n|$)", re.DOTALL)


WRITERS = {
    "hermes": lambda name, given: f"<tool_call>\n{_json({'name': name, 'arguments': given})}\n</tool_call>",
    "qwen3_coder": lambda name, given: (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        + "</function>\n</tool_call>"
    ),
    "mistral": lambda name, given: f"[TOOL_CALLS][{_json({'name': name, 'arguments': given})}]",
    "llama3_json": lambda name, given: _json({"name": name, "parameters": given}),
    "pythonic": lambda name, given: (
        f"[{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})]"
    ),
    "harmony": lambda name, given: (
        f"<|channel|>analysis<|message|>A tool.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.{name} <|constrain|>json<|message|>{_json(given)}<|call|>"
    ),
}
"""Calls as the models of each family write them: of a name and arguments."""


def answer_to(prompt: str, family: str) -> str:
    """Return the scripted model's answer."""
    asked = JSON.findall(prompt)
    arguments = json.loads(asked[-1]) if asked else {}
    results, tool = RESULT.findall(prompt), TOOL.search(prompt)
    if tool and not results:
        return WRITERS[family](tool[1], arguments)
    text = f"The tool says: {results[-1]}" if results else _json(arguments) if asked else "Hello, wörld!"
    return f"<|channel|>final<|message|>{text}" if family == "harmony" else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _script(family: str) -> Callable[[Submit], list[int]]:
    def tokens(submit: Submit) -> list[int]:
        prompt = bytes(token for token in submit.prompt if token < 256).decode(errors="replace")
        return [*tokens_of(answer_to(prompt, family)), END]

    return tokens


def main() -> None:
    """Serve one model a family until standard input ends."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        model, urls = write_model(Path(folder) / "tiny"), {}
        for family in WRITERS:
            server = servers.enter_context(live_server(model, tool_parser=family))
            server.engine.info = replace(server.engine.info, max_context=MAX_CONTEXT)
            server.engine.script = _script(family)
            urls[family] = server.url
        print(json.dumps(urls), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
