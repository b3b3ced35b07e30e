"""A runtime pod whose answers a test writes: the real server and command line around a scripted engine.

    python tests/browser/scripted_runtime.py serve MODEL …     as `wisp-runtime serve` does

The folder that ``SCRIPT`` names directs it, read anew at every request:

    answers.json   [{"prompt": TEXT, "parts": [TEXT | {"wait": NAME}, …], "pace_s": S, "cached": N}, …]:
                   the first whose prompt is in the user's last message; {"wait": NAME} waits for that file
    hold           start-up stays at 62 % of its weights while this file exists
    fail.json      {"reason": WORD, "message": TEXT}: start-up ends with it
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime/support"))
from fake_engine import FakeEngine

from wisp_plan.fit.verdict import Fit, FitRequest, check
from wisp_runtime.cli import serve
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import Fatal, Load, Phase, Ready, Submit, TokenEvent
from wisp_runtime.models.load import read_spec
from wisp_runtime.server.process import run

FOLDER = Path(os.environ["SCRIPT"])
MIB = 1 << 20
BLOCKS, BLOCKS_OF_A_REQUEST = 2048, 96
POLL_S = 0.02
LAST_USER = re.compile(r".*<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
FREE_BYTES = 6144 * MIB


class ScriptedEngine(FakeEngine):
    """Plays the answers of ``FOLDER``, and a start-up whose weights can be held."""

    def __init__(self, config: ServeConfig) -> None:
        super().__init__()
        folder = Path(config.model.removeprefix("file://"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id("<|im_end|>")
        self._name, self._fit = config.served_name, _fit(folder)
        self._counts = {"prompt_tokens_total": 0, "cached_tokens_total": 0, "generated_tokens_total": 0}
        self._running = 0
        self._starting = asyncio.create_task(self._start())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.result())

    async def _start(self) -> None:
        began, size = time.monotonic(), self._fit.ledger.weights_bytes
        self.phases = (Phase("import", 0.1, True), Phase("weights", 0.0, False, 0, size))
        while (FOLDER / "hold").exists():
            held = Phase("weights", time.monotonic() - began, False, size * 62 // 100 + 1, size)
            self.phases = (self.phases[0], held)
            await asyncio.sleep(POLL_S)
        if (FOLDER / "fail.json").exists():
            said = json.loads((FOLDER / "fail.json").read_text())
            self.die(Fatal(said["reason"], said["message"]))
            return
        loaded = Phase("weights", time.monotonic() - began, True, size, size)
        self.phases = (self.phases[0], loaded, Phase("firstToken", 0.05, True))
        self._count()
        self.info = Ready(
            max_context=self._fit.max_context,
            max_concurrent=self._fit.max_concurrent,
            vocab_size=self._tokenizer.get_vocab_size(),
            eos_token_ids=(self._end,),
            ledger=self._fit.to_dict(),
            kernels={"set": "scripted"},
            device="cpu",
            load=self.load,
        )
        self.ready.set()

    async def _play(self, request: Submit, queue: asyncio.Queue[TokenEvent | Fatal]) -> None:
        self._running += 1
        try:
            answer, sent = self._answer_to(request), 0
            cached = int(answer.get("cached", 0))
            self._counts["prompt_tokens_total"] += len(request.prompt) - cached
            self._counts["cached_tokens_total"] += cached
            async for token in self._tokens_of(answer):
                sent += 1
                finish = "stop" if token == self._end else "length" if sent == request.max_tokens else None
                queue.put_nowait(TokenEvent(request.request_id, token, finish, cached))
                self._counts["generated_tokens_total"] += 1
                self._count()
                if finish:
                    return
        except Exception as error:  # noqa: BLE001 - a test that writes a wrong script shall see it in the page
            queue.put_nowait(TokenEvent(request.request_id, None, "error", message=f"the script: {error!r}"))
        finally:
            self._running -= 1
            self._count()

    async def _tokens_of(self, answer: dict[str, Any]) -> AsyncIterator[int]:
        for part in answer["parts"]:
            if isinstance(part, dict):
                while not (FOLDER / part["wait"]).exists():
                    await asyncio.sleep(POLL_S)
                continue
            for token in self._tokenizer.encode(part, add_special_tokens=False).ids:
                await asyncio.sleep(answer.get("pace_s", 0.0))
                yield token
        yield self._end

    def _answer_to(self, request: Submit) -> dict[str, Any]:
        prompt = self._tokenizer.decode(list(request.prompt), skip_special_tokens=False)
        asked = LAST_USER.match(prompt)
        said = asked[1] if asked else ""
        for answer in json.loads((FOLDER / "answers.json").read_text()):
            if answer["prompt"] in said:
                return answer
        return {"parts": [f"{self._name} was asked: {said}"]}

    def _count(self) -> None:
        used = min(BLOCKS, self._running * BLOCKS_OF_A_REQUEST)
        self.load = Load(running=self._running, kv_blocks_used=used, kv_blocks_total=BLOCKS, **self._counts)

    async def shutdown(self) -> None:
        self._starting.cancel()
        await super().shutdown()


def _fit(folder: Path) -> Fit:
    request = FitRequest(device="cpu")
    return check(read_spec(folder), request, available_bytes=FREE_BYTES, device_name="this machine")


async def _start(config: ServeConfig) -> ScriptedEngine:
    return ScriptedEngine(config)


def _serve(model: str, **settings: Any) -> None:
    sys.exit(run(ServeConfig(model=model, **settings), _start))


if __name__ == "__main__":
    command = click.Command("serve", callback=_serve, params=serve.command.params)
    click.Group(commands=[command])()
