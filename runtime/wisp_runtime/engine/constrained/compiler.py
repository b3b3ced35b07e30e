"""Compile the grammars of requests in threads, while the engine steps; keep those that were used last.

A request waits in the scheduler's queue meanwhile, within that queue's bounds: a grammar that does not
compile is refused before a token is computed. The server has checked its text (:mod:`.limits`), so that the
time of each is bounded.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.grammar import Grammar, reason
from wisp_runtime.engine.constrained.limits import parser_limits
from wisp_runtime.engine.constrained.thinking import thinking_of
from wisp_runtime.engine.transport.messages import Submit
from wisp_runtime.errors import RuntimeFailure

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from wisp_runtime.engine.constrained.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MAX_COMPILED = 64
COMPILED_AT_A_TIME = 2  # a grammar that takes long does not hold up the others


@dataclass(frozen=True)
class Compiled:
    """A grammar's parser at its start, which each answer copies; or the reason why there is none."""

    matcher: LLMatcher | None
    vocabulary: Vocabulary | None
    refusal: str = ""


class GrammarCompiler:
    """Requests whose grammars are being compiled.

    Args:
        read_vocabulary: reads the model's tokens, once, at the first request with a grammar; None where there
            is no tokenizer: grammars are refused.
    """

    def __init__(self, read_vocabulary: Callable[[], Vocabulary] | None = None) -> None:
        self._read_vocabulary = read_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._compiled: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._waiting: dict[str, tuple[Submit, Future[Compiled]]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its grammar."""
        return not self._waiting

    def add(self, request: Submit) -> None:
        """Have the grammar of ``request`` compiled; :meth:`take` returns its rule afterwards."""
        assert request.constraint is not None
        self._waiting[request.request_id] = request, self._job(request.constraint)

    def forget(self, request_id: str) -> None:
        """Forget a request that ended, if it waits; do not begin what only it waits for."""
        request, job = self._waiting.pop(request_id, (None, None))
        if request is None or job is None or any(job is other for _, other in self._waiting.values()):
            return
        if job.cancel() and request.constraint is not None:
            self._compiled.pop(request.constraint, None)

    def close(self) -> None:
        """Begin no compile any more; the process would end only after those that wait."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def wait(self, timeout_s: float) -> None:
        """Wait until a grammar is compiled, or for ``timeout_s``."""
        wait({job for _, job in self._waiting.values()}, timeout_s, return_when="FIRST_COMPLETED")

    def take(self) -> list[tuple[str, Constraint | str]]:
        """Return requests by id whose grammars are compiled, with their rules, or why they are refused."""
        compiled = [request for request, job in self._waiting.values() if job.done()]
        jobs = [self._waiting.pop(request.request_id)[1] for request in compiled]
        self._evict()
        return [
            (request.request_id, _constraint(request, job.result()))
            for request, job in zip(compiled, jobs, strict=True)
        ]

    def _job(self, text: str) -> Future[Compiled]:
        job = self._compiled.get(text)
        if job is None:
            self._threads = self._threads or ThreadPoolExecutor(
                COMPILED_AT_A_TIME, thread_name_prefix="grammar"
            )
            job = self._compiled[text] = self._threads.submit(self._compile, text)
        self._compiled.move_to_end(text)
        return job

    def _evict(self) -> None:
        """Forget the grammars that were used longest ago, of those that are compiled."""
        surplus = len(self._compiled) - MAX_COMPILED
        done = (text for text, job in self._compiled.items() if job.done())
        for text in list(islice(done, max(0, surplus))):
            del self._compiled[text]

    def _compile(self, text: str) -> Compiled:
        try:
            return self._compiled_now(text)
        except BaseException as error:  # a panic of the library must end this request alone
            log.exception("a grammar could not be compiled")
            why = f"the grammar of the answer broke its compiler ({type(error).__name__})"
            return Compiled(None, None, why)

    def _compiled_now(self, text: str) -> Compiled:
        from llguidance import LLMatcher

        if self._read_vocabulary is None:
            return Compiled(None, None, "this engine has no tokenizer; leave the constraint out")
        try:
            with self._lock:
                vocabulary = self._vocabulary = self._vocabulary or self._read_vocabulary()
        except RuntimeFailure as error:
            return Compiled(None, None, error.message)
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=parser_limits())
        if matcher.is_error():
            return Compiled(
                None, None, f"the grammar of the answer cannot be used: {reason(matcher.get_error())}"
            )
        return Compiled(matcher, vocabulary)


def compiler_of(path: Path, spec: ModelSpec) -> GrammarCompiler:
    """Return the compiler for the model at ``path``: a folder, or a GGUF file."""

    def read() -> Vocabulary:
        from wisp_runtime.engine.constrained.vocabulary import read_vocabulary

        return read_vocabulary(path, spec.vocab, spec.eos_token_ids)

    return GrammarCompiler(read)


def _constraint(request: Submit, compiled: Compiled) -> Constraint | str:
    """Return the rule on the answer to ``request``, or why it is refused."""
    if compiled.matcher is None or compiled.vocabulary is None:
        return compiled.refusal
    matcher, vocabulary = compiled.matcher, compiled.vocabulary
    ends = {*vocabulary.end_ids.tolist(), *request.stop_token_ids}
    rule = thinking_of(request.thinking, lambda: Grammar(matcher.deep_copy(), vocabulary), ends)
    assert rule is not None
    return rule
