"""Requests whose grammars are compiled wait in the scheduler's queue: counted, timed, and in their place."""

import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.constrained.compiler import ANSWERS_A_LEXER, COMPILED_AT_A_TIME, GrammarCompiler
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.waiting_queue import MAX_WAITING_TOKENS
from wisp_runtime.engine.transport.messages import Abort, SamplingParams, Shutdown, Submit, ThinkingRule

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from test_grammars import DIGITS, LIST, asked
from toy_engine import EOS, VOCAB, ToyRule, toy_runner
from toy_grammar import toy_vocabulary


class Gate:
    """A vocabulary that cannot be read before ``opens``, so that every grammar takes that long."""

    def __init__(self):
        self.opens = threading.Event()

    def read(self):
        assert self.opens.wait(60)
        return toy_vocabulary()


class Channel:
    """Sends one inbox after the other, each once its condition on the ends so far holds, then a shutdown."""

    def __init__(self, *steps):
        self.steps, self.ends, self.order, self.waiting = list(steps), {}, [], []
        self.until_s = time.monotonic() + 60

    def receive(self, *, waits):
        assert time.monotonic() < self.until_s, self.ends
        if not self.steps:
            return [Shutdown()]
        is_due, action = self.steps[0]
        if not is_due(self):
            return []
        self.steps.pop(0)
        return action() or []

    def send(self, message):
        self.waiting.append(message.load.waiting)
        for event in message.events:
            if event.token is not None and event.request_id not in self.order:
                self.order.append(event.request_id)
            if event.finish:
                self.ends[event.request_id] = event.finish


def limits(**fields):
    sizes = {"max_step_tokens": 64, "max_concurrent": 2, "max_context": 60} | fields
    return Limits(one_pool(64, 4), vocab=VOCAB, eos=frozenset({EOS}), **sizes)


def serve(channel, gate, **fields):
    bounds = limits(**fields)
    scheduler = make_scheduler(bounds)
    compiler = GrammarCompiler(gate.read)
    run(channel, scheduler, toy_runner(bounds.cache), compiler=compiler)
    assert scheduler.is_idle
    assert compiler.is_idle
    assert scheduler.load.waiting == 0
    return channel


def at_once(_):
    return True


def ended(count):
    return lambda channel: len(channel.ends) >= count


def test_a_flood_of_grammars_is_bounded_as_other_requests_are():
    gate = Gate()
    flood = [asked(f"r{n}", DIGITS + " " * n, max_tokens=4) for n in range(20)]
    channel = Channel((at_once, lambda: flood), (ended(15), gate.opens.set), (ended(20), list))
    serve(channel, gate, max_waiting=3)
    refused = [f"r{n}" for n in range(5, 20)]  # three may wait, and two would start at once
    assert [name for name, end in channel.ends.items() if end == "overloaded"] == refused
    assert channel.waiting[0] == 5


def test_a_long_prompt_counts_while_its_grammar_is_compiled():
    scheduler = make_scheduler(
        Limits(one_pool(1 << 21, 4), 64, 2, 1 << 23, vocab=VOCAB, eos=frozenset({EOS}))
    )
    prompt = (1,) * (MAX_WAITING_TOKENS // 2 + 1)
    events = [scheduler.submit(asked(f"r{n}", DIGITS, (*prompt, n))) for n in range(2)]
    assert [event and (event.request_id, event.finish) for event in events] == [None, ("r1", "overloaded")]


def test_a_request_whose_grammar_takes_too_long_expires():
    gate = Gate()
    channel = Channel(
        (at_once, lambda: [asked("a", DIGITS), asked("b", LIST)]), (ended(2), gate.opens.set), (at_once, list)
    )
    serve(channel, gate, max_queue_wait_s=0.05)
    assert channel.ends == {"a": "expired", "b": "expired"}


def test_an_aborted_request_is_not_compiled_unless_another_waits_for_the_same():
    gate = Gate()
    compiler = GrammarCompiler(gate.read)
    texts = [DIGITS + " " * n for n in range(COMPILED_AT_A_TIME + 2)]
    for number, text in enumerate([*texts, texts[-1]]):
        compiler.add(asked(f"r{number}", text))
    alone, shared, sharer = (f"r{len(texts) - 2}", f"r{len(texts) - 1}", f"r{len(texts)}")
    compiler.forget(alone)
    compiler.forget(shared)
    compiler.forget("nobody")
    assert list(compiler._compiled) == [text for text in texts if text != texts[-2]]
    gate.opens.set()
    taken = []
    while not compiler.is_idle:
        compiler.wait(1)
        taken += [name for name, _ in compiler.take()]
    assert set(taken) == {f"r{n}" for n in range(COMPILED_AT_A_TIME)} | {sharer}
    compiler.add(asked("again", texts[-2]))  # as if nobody had asked for it
    compiler.wait(60)
    assert [name for name, _ in compiler.take()] == ["again"]


def test_an_abort_while_the_grammar_is_compiled_ends_the_request_once():
    gate = Gate()
    channel = Channel(
        (at_once, lambda: [asked("a", DIGITS)]),
        (at_once, lambda: [Abort("a")]),
        (ended(1), gate.opens.set),
        (at_once, list),
    )
    serve(channel, gate)
    assert channel.ends == {"a": "abort"}
    assert channel.order == []


def test_a_shutdown_does_not_wait_for_grammars_that_are_not_begun():
    gate, bounds = Gate(), limits(max_concurrent=8)
    compiler = GrammarCompiler(gate.read)
    asking = [asked(f"r{n}", DIGITS + " " * n) for n in range(COMPILED_AT_A_TIME + 3)]
    channel = Channel((at_once, lambda: asking))
    run(channel, make_scheduler(bounds), toy_runner(bounds.cache), compiler=compiler)
    assert len(compiler._compiled) <= COMPILED_AT_A_TIME
    gate.opens.set()


def test_a_request_keeps_its_place_in_line_while_its_grammar_is_compiled():
    bounds = limits(max_concurrent=1)
    scheduler, runner = make_scheduler(bounds), toy_runner(bounds.cache)
    plain = [Submit(f"p{n}", (1, n), 3, SamplingParams(temperature=0.0), ignore_eos=True) for n in range(4)]
    for request in (plain[0], asked("ruled", "thirds", max_tokens=3), *plain[1:]):
        assert scheduler.submit(request) is None
    order = []
    while not scheduler.is_idle:
        plan = scheduler.plan()
        order += [chunk.sequence.id for chunk in plan]
        scheduler.commit(plan, run_step(runner, plan))
        if order == ["p0"] * 3 + ["p1"] * 2:
            assert scheduler.constrain("ruled", ToyRule("thirds")) is None
    assert order == ["p0"] * 3 + ["p1"] * 2 + ["ruled"] * 3 + ["p1"] + ["p2"] * 3 + ["p3"] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ()},
        {"prompt": (VOCAB,)},
        {"prompt": (1,) * 60},
        {"thinking": ThinkingRule((), ())},
        {"stop_token_ids": (VOCAB,)},
    ],
)
def test_a_request_that_can_never_run_is_refused_before_its_grammar_is_compiled(fields):
    gate = Gate()  # it stays shut until the refusal has come
    channel = Channel(
        (at_once, lambda: [asked("a", DIGITS, **fields)]), (ended(1), gate.opens.set), (at_once, list)
    )
    serve(channel, gate)
    assert channel.ends == {"a": "refused"}


def compiled(compiler, count, text=DIGITS, first=0):
    """Ask for ``count`` answers at once; return their grammars."""
    for number in range(count):
        compiler.add(asked(f"r{first + number}", text))
    taken = []
    while not compiler.is_idle:
        compiler.wait(60)
        taken += compiler.take()
    return [constraint for _, constraint in taken]


def test_a_compiler_that_closed_keeps_no_job_that_was_not_begun():
    gate = Gate()
    compiler = GrammarCompiler(gate.read)
    texts = [DIGITS + " " * n for n in range(COMPILED_AT_A_TIME + 2)]
    for number, text in enumerate(texts):
        compiler.add(asked(f"r{number}", text))
    compiler.close()
    compiler.close()
    assert [text for text, job in compiler._compiled.items() if job.cancelled()] == []
    gate.opens.set()
    begun = []
    while not compiler.is_idle:
        compiler.wait(60)
        begun += [request_id for request_id, _ in compiler.take()]
    assert set(begun) <= {f"r{n}" for n in range(COMPILED_AT_A_TIME)}
    assert len(compiled(compiler, 1, first=50)) == 1  # the same text, compiled anew


@pytest.mark.parametrize(
    ("threads", "answers", "lexers"),
    [
        (8, 1, 1),
        (8, ANSWERS_A_LEXER, 1),
        (8, ANSWERS_A_LEXER + 1, 2),
        (8, 32, 8),
        (8, 50, 8),
        (2, 32, 2),
        (1, 32, 1),
    ],
)
def test_a_grammar_of_many_answers_at_a_time_has_several_lexers_each_with_as_many(
    monkeypatch, threads, answers, lexers
):
    gate = Gate()
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.executor_threads", lambda: threads)
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.QUICK_S", 60)
    compiler = GrammarCompiler(gate.read)
    threading.Timer(0.05, gate.opens.set).start()
    counts = Counter(grammar.lexer_id for grammar in compiled(compiler, answers))
    assert len(counts) == lexers
    assert max(counts.values()) - min(counts.values()) <= 1


def test_answers_one_after_another_share_a_lexer_and_more_come_when_answers_are_many(monkeypatch):
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.executor_threads", lambda: 4)
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.QUICK_S", 60)
    compiler = GrammarCompiler(toy_vocabulary)
    for number in range(10):
        compiled(compiler, 1, first=number)  # its answer is over at once
    (job,) = compiler._compiled.values()
    assert len(job.result().lexers) == 1
    answers = []
    for number in range(16):
        answers += compiled(compiler, 1, first=100 + number)
    assert Counter(Counter(answer.lexer_id for answer in answers).values()) == {4: 4}


def test_a_grammar_that_takes_long_to_compile_has_one_lexer(monkeypatch):
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.executor_threads", lambda: 4)
    monkeypatch.setattr("wisp_runtime.engine.constrained.compiler.QUICK_S", 0)
    answers = compiled(GrammarCompiler(toy_vocabulary), 9)
    assert len({answer.lexer_id for answer in answers}) == 1
