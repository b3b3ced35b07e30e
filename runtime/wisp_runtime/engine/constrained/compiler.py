"""Compile the grammars of requests in threads, while the engine steps; keep those that were used last.

A request waits in the scheduler's queue meanwhile, within that queue's bounds: a grammar that does not
compile is refused before a token is computed. The server has checked its text (:mod:`.limits`), so that the
time of each is bounded.

Copies of one parser share its lexer, behind a lock: their masks are computed one after another. So a grammar
that many answers follow at a time is compiled again, once for every :data:`ANSWERS_A_LEXER` of them.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.grammar import Grammar, executor_threads, reason
from wisp_runtime.engine.constrained.limits import parser_limits
from wisp_runtime.engine.constrained.thinking import thinking_of
from wisp_runtime.engine.transport.messages import Submit
from wisp_runtime.errors import RuntimeFailure

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from wisp_runtime.engine.constrained.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MAX_LEXERS = 64  # lexers of all grammars, besides those of answers being generated
COMPILED_AT_A_TIME = 2  # a grammar that takes long does not hold up the others
ANSWERS_A_LEXER = 4
QUICK_S = 0.02  # compile time above which a grammar has one lexer alone


@dataclass(frozen=True, eq=False)
class Lexer:
    """A grammar's parser at its start, and the answers whose parsers are copies of it."""

    matcher: LLMatcher
    answers: WeakSet[Grammar] = field(default_factory=WeakSet)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled grammar.

    Args:
        vocabulary: tokens that it counts; None if it is refused.
        lexers: parsers that answers copy; one thread at a time adds some.
        is_quick: whether it may have several.
        refusal: reason why there is none.
    """

    vocabulary: Vocabulary | None = None
    lexers: list[Lexer] = field(default_factory=list)
    is_quick: bool = False
    refusal: str = ""

    def wants_lexer(self, waiting: int) -> bool:
        """Return whether the answers, with those that wait to begin, are many for the lexers there are."""
        answers = waiting + sum(len(lexer.answers) for lexer in self.lexers)
        count = len(self.lexers)
        return self.is_quick and count < executor_threads() and answers > ANSWERS_A_LEXER * count

    def answer(self) -> Grammar:
        """Return the parser of an answer."""
        assert self.vocabulary is not None
        lexer = min(self.lexers, key=lambda lexer: len(lexer.answers))
        grammar = Grammar(lexer.matcher.deep_copy(), self.vocabulary, lexer)
        lexer.answers.add(grammar)
        return grammar


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
        self._waiting_for = Counter[str]()  # requests by grammar
        self._may_be_surplus = False  # a job was begun since the grammars were counted, or runs

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its grammar."""
        return not self._waiting

    def add(self, request: Submit) -> None:
        """Have the grammar of ``request`` compiled; :meth:`take` returns its rule afterwards."""
        assert request.constraint is not None
        self._waiting_for[request.constraint] += 1
        self._waiting[request.request_id] = request, self._job(request.constraint)

    def forget(self, request_id: str) -> None:
        """Forget a request that ended, if it waits; do not begin what only it waits for."""
        if request_id not in self._waiting:
            return
        text, job = self._remove(request_id)
        if not self._waiting_for[text] and job.cancel():
            self._compiled.pop(text, None)

    def close(self) -> None:
        """Begin no compile any more, and forget what was not begun: the process would end only after it."""
        if self._threads is None:
            return
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = None
        for request, job in list(self._waiting.values()):
            if job.cancelled():
                self._remove(request.request_id)
        for text in [text for text, job in self._compiled.items() if job.cancelled()]:
            del self._compiled[text]

    def wait(self, timeout_s: float) -> None:
        """Wait until a grammar is compiled, or for ``timeout_s``."""
        wait({job for _, job in self._waiting.values()}, timeout_s, return_when="FIRST_COMPLETED")

    def take(self) -> list[tuple[str, Constraint | str]]:
        """Return requests by id whose grammars are compiled, with their rules, or why they are refused."""
        compiled = [request for request, job in self._waiting.values() if job.done()]
        jobs = [self._remove(request.request_id)[1] for request in compiled]
        if self._may_be_surplus:
            self._may_be_surplus = not all(job.done() for job in self._compiled.values())
            self._evict()
        return [
            (request.request_id, _constraint(request, job.result()))
            for request, job in zip(compiled, jobs, strict=True)
        ]

    def _remove(self, request_id: str) -> tuple[str, Future[Compiled]]:
        """Remove a request that waits; return its grammar, and the job that it waits for."""
        request, job = self._waiting.pop(request_id)
        text = request.constraint or ""
        self._waiting_for[text] -= 1
        if not self._waiting_for[text]:
            del self._waiting_for[text]
        return text, job

    def _job(self, text: str) -> Future[Compiled]:
        job = self._compiled.get(text)
        if job is None:
            job = self._compiled[text] = self._submit(self._compile, text)
        elif job.done() and job.result().wants_lexer(self._waiting_for[text]):
            job = self._compiled[text] = self._submit(self._add_lexers, text, job.result())
        self._compiled.move_to_end(text)
        return job

    def _submit(self, *call: Any) -> Future[Compiled]:
        self._threads = self._threads or ThreadPoolExecutor(COMPILED_AT_A_TIME, thread_name_prefix="grammar")
        self._may_be_surplus = True
        return self._threads.submit(*call)

    def _evict(self) -> None:
        """Forget the grammars that were used longest ago, of those that are compiled."""
        lexers = {text: len(job.result().lexers) if job.done() else 1 for text, job in self._compiled.items()}
        surplus = sum(lexers.values()) - MAX_LEXERS
        for text in [text for text, job in self._compiled.items() if job.done()]:
            if surplus <= 0:
                return
            del self._compiled[text]
            surplus -= lexers[text]

    def _compile(self, text: str) -> Compiled:
        try:
            return self._compiled_now(text)
        except BaseException as error:  # a panic of the library must end this request alone
            log.exception("a grammar could not be compiled")
            return Compiled(refusal=f"the grammar of the answer broke its compiler ({type(error).__name__})")

    def _compiled_now(self, text: str) -> Compiled:
        if self._read_vocabulary is None:
            return Compiled(refusal="this engine has no tokenizer; leave the constraint out")
        try:
            with self._lock:
                vocabulary = self._vocabulary = self._vocabulary or self._read_vocabulary()
        except RuntimeFailure as error:
            return Compiled(refusal=error.message)
        began_s = perf_counter()
        matcher = _matcher(vocabulary, text)
        if matcher.is_error():
            why = reason(matcher.get_error())
            return Compiled(refusal=f"the grammar of the answer cannot be used: {why}")
        is_quick = perf_counter() - began_s < QUICK_S
        return self._add_lexers(text, Compiled(vocabulary, [Lexer(matcher)], is_quick))

    def _add_lexers(self, text: str, compiled: Compiled) -> Compiled:
        """Compile a grammar again, as often as its answers are too many for its lexers."""
        while compiled.vocabulary is not None and compiled.wants_lexer(self._waiting_for[text]):
            try:
                compiled.lexers.append(Lexer(_matcher(compiled.vocabulary, text)))
            except BaseException:  # a panic of the library; there are other lexers
                log.exception("a grammar could not be compiled again")
                break
        return compiled


def _matcher(vocabulary: Vocabulary, text: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=parser_limits())


def compiler_of(path: Path, spec: ModelSpec) -> GrammarCompiler:
    """Return the compiler for the model at ``path``: a folder, or a GGUF file."""

    def read() -> Vocabulary:
        from wisp_runtime.engine.constrained.vocabulary import read_vocabulary

        return read_vocabulary(path, spec.vocab, spec.eos_token_ids)

    return GrammarCompiler(read)


def _constraint(request: Submit, compiled: Compiled) -> Constraint | str:
    """Return the rule on the answer to ``request``, or why it is refused."""
    if compiled.vocabulary is None:
        return compiled.refusal
    ends = {*compiled.vocabulary.end_ids.tolist(), *request.stop_token_ids}
    rule = thinking_of(request.thinking, compiled.answer, ends)
    assert rule is not None
    return rule
