"""A model without a model: a scripted engine, a byte tokenizer, and the real server around them.

The tokenizer has one token a byte and a few special ones, so every character beyond ASCII is split
across tokens.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import uvloop
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import (
    ExpertReport,
    Fatal,
    FinishReason,
    Load,
    Phase,
    Ready,
    Submit,
    TokenEvent,
    TokenLogprobs,
)
from wisp_runtime.errors import EngineDied
from wisp_runtime.server.http.server import HttpServer
from wisp_runtime.server.process import bound_socket
from wisp_runtime.server.text.tokenizer import _byte_alphabet

START, END = 256, 257
VOCAB = 264  # wider than the tokenizer, as padded vocabularies are
MAX_CONTEXT = 512
HIDDEN = 8
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'forbidden' %}{{ raise_exception('not that word') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_model(directory: Path, template: str | None = TEMPLATE) -> Path:
    """Write the tokenizer of a byte model, its config and its template."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|start|>"}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def tokens_of(text: str | bytes) -> list[int]:
    """Return the tokens of a text: its bytes."""
    return list(text.encode() if isinstance(text, str) else text)


def vector_of(request: Submit) -> list[float]:
    """Return a vector that tells which prompt was pooled: its length, and tokens from its end backwards."""
    return [float(len(request.prompt)), *map(float, request.prompt[:-HIDDEN:-1]), *[0.0] * HIDDEN][:HIDDEN]


class FakeEngine:
    """Answers by script, keeps what it was sent, and fails on demand. Made in the server's loop."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.failed: asyncio.Future[Fatal] = asyncio.get_running_loop().create_future()
        self.info: Ready | None = None
        self.phases: tuple[Phase, ...] = (Phase("import", 0.1, True),)
        self.load = Load(kv_blocks_total=64)
        self.experts: ExpertReport | None = None
        self.next_report: ExpertReport | None = None
        self.script: Callable[[Submit], Iterable[int]] = lambda _: [*tokens_of("Hello, world"), END]
        self.vector = vector_of
        self.delay_s = 0.0
        self.cached_tokens = 0
        self.fails_with = ""
        self.refuses_with: FinishReason = "error"
        self.submitted: list[Submit] = []
        self.sent = Counter[str]()
        self.aborted: list[str] = []
        self.is_shut = False
        self._queues: dict[str, asyncio.Queue[TokenEvent | Fatal]] = {}

    def become_ready(self) -> None:
        self.info = Ready(
            *(MAX_CONTEXT, 8, VOCAB, (END,), {"totalBytes": 1}, {"set": "fake"}, "cpu", self.load),
            hidden_size=HIDDEN,
            poolings=frozenset({"last", "mean", "logits"}),
        )
        self.ready.set()

    async def read_experts(self) -> None:
        """Report what the test has set."""
        self.experts = self.next_report

    def die(self, fatal: Fatal | None = None) -> None:
        """End as a killed process does."""
        fatal = fatal or Fatal("EngineDied", "the engine's process was killed by signal 9")
        for queue in self._queues.values():
            queue.put_nowait(fatal)
        self.failed.set_result(fatal)

    async def submit(self, request: Submit) -> AsyncGenerator[TokenEvent, None]:
        self.submitted.append(request)
        queue = self._queues[request.request_id] = asyncio.Queue()
        playing = asyncio.create_task(self._play(request, queue))
        is_over = False
        try:
            while not is_over:
                event = await queue.get()
                is_over = True
                if isinstance(event, Fatal):
                    raise EngineDied(event.message)
                is_over = event.finish is not None
                yield event
        finally:
            playing.cancel()
            del self._queues[request.request_id]
            if not is_over:
                self.abort(request.request_id)

    async def _play(self, request: Submit, queue: asyncio.Queue[TokenEvent | Fatal]) -> None:
        if self.fails_with or self.refuses_with != "error":
            event = TokenEvent(request.request_id, None, self.refuses_with, message=self.fails_with)
            queue.put_nowait(event)
            return
        if request.pooling is not None:
            await asyncio.sleep(self.delay_s)
            vector = struct.pack(f"{len(numbers := self.vector(request))}f", *numbers)
            queue.put_nowait(TokenEvent(request.request_id, None, "stop", pooled=vector))
            return
        stops = {*request.stop_token_ids, *(() if request.ignore_eos else (END,))}
        tokens = self.script(request)
        for count, token in enumerate(cycle(tokens) if request.ignore_eos else tokens, start=1):
            await asyncio.sleep(self.delay_s)
            finish = "stop" if token in stops else "length" if count == request.max_tokens else None
            scores = self._scores(request) if count == 1 else ()
            if half := len(scores) // 2:
                queue.put_nowait(TokenEvent(request.request_id, None, prompt_logprobs=scores[:half]))
            event = self._event(request, token, finish)
            queue.put_nowait(event._replace(prompt_logprobs=scores[half:]))
            self.sent[request.request_id] += 1
            if finish:
                return

    def _scores(self, request):
        """Return scores of a prompt: each token's is minus a quarter of its position."""
        wanted = request.sampling.prompt_logprobs
        if wanted is None:
            return ()
        pairs = enumerate(request.prompt[1:], start=1)
        return tuple(TokenLogprobs(-n / 4, ((token, -n / 4), (1, -9.0))[:wanted]) for n, token in pairs)

    def _event(self, request, token, finish):
        wanted = request.sampling.logprobs
        logprobs = None
        if wanted is not None:
            logprobs = TokenLogprobs(-0.5, ((token, -0.5), (1, float("-inf")))[:wanted])
        return TokenEvent(request.request_id, token, finish, self.cached_tokens, logprobs)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if queue := self._queues.get(request_id):
            queue.put_nowait(TokenEvent(request_id, None, "abort"))

    async def shutdown(self) -> None:
        self.is_shut = True


class LiveServer:
    """The real server on a loopback port, in a thread with a loop of its own."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.engine: FakeEngine
        self.server: HttpServer
        self.failure: Fatal | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, *, is_ready: bool = True) -> None:
        self._thread.start()
        assert self._started.wait(60)
        if is_ready:
            self.call(self.engine.become_ready)
            self.wait_until(lambda: self.server.service.status == "ready")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self.failure = runner.run(self._serve())

    async def _serve(self) -> Fatal | None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._skip_wait = asyncio.Event(), asyncio.Event()
        self.engine = FakeEngine()
        with bound_socket(self.config.host, self.config.port) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.server = HttpServer(self.config, self.engine, listener)
            self._started.set()
            return await self.server.run(self._stop, self._skip_wait)

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` in the server's loop and wait for it."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(60)

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.005)

    def stop(self) -> None:
        self.call(self._stop.set)

    def skip_wait(self) -> None:
        self.call(self._skip_wait.set)

    def join(self, timeout_s: float = 60.0) -> Fatal | None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the server did not end"
        return self.failure


@contextmanager
def live_server(model: Path, *, is_ready: bool = True, **settings) -> Iterator[LiveServer]:
    """Run a server around a fake engine; stop it at the end."""
    settings = {"served_name": "tiny", "host": "127.0.0.1", "port": 0, "drain_timeout_s": 0.2, **settings}
    server = LiveServer(ServeConfig(model=str(model), **settings))
    server.start(is_ready=is_ready)
    try:
        yield server
    finally:
        if server._thread.is_alive():
            server.stop()
            server.skip_wait()
        server.join()
