"""Answers that follow a grammar, whatever the model would say and the other sequences do."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.constrained.compiler import MAX_LEXERS, GrammarCompiler
from wisp_runtime.engine.constrained.grammar import Grammar
from wisp_runtime.engine.constrained.masks import TokenMask, rows_of, start
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.transport.messages import Abort, SamplingParams, Shutdown, Submit
from wisp_runtime.errors import TokenizerUnreadable

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from fake_device import fake_device_runner
from toy_engine import EOS, VOCAB, ToyRule, answer, toy_runner
from toy_grammar import TEXTS, text_of, toy_vocabulary

DIGITS = "start: /[012]+/"
LIST = r'start: "[" (NUMBER ("," NUMBER)*)? "]"' + "\nNUMBER: /[12][012]?/"
LONG = "start: /[012]{30,40}/"
JSON = json.dumps({"type": "array", "items": {"enum": [1, 2, "ab"]}, "minItems": 2, "maxItems": 6})
COMPACT_JSON = f'%llguidance {{}}\nstart: %json {JSON[:-1]}, "x-guidance": {{"whitespace_flexible": false}}}}'
COMPLETE = {
    LONG: re.compile(r"[012]{30,40}"),
    DIGITS: re.compile(r"[012]+"),
    LIST: re.compile(r"\[([12][012]?(,[12][012]?)*)?\]"),
    COMPACT_JSON: re.compile(r'\[(1|2|"ab")(,(1|2|"ab")){1,5}\]'),
}


class Channel:
    """Sends what ``script`` has for each call; collects tokens and ends by request."""

    def __init__(self, *script):
        self.script, self.tokens, self.ends = list(script), {}, {}
        self.opened = 0

    def receive(self, *, waits):
        messages = self.script.pop(0) if self.script else []
        self.opened += sum(isinstance(message, Submit) for message in messages)
        is_over = not self.script and len(self.ends) == self.opened
        return messages or ([Shutdown()] if is_over else [])

    def send(self, message):
        for event in message.events:
            if event.token is not None:
                self.tokens.setdefault(event.request_id, []).append(event.token)
            if event.finish:
                self.ends[event.request_id] = event.finish, event.message


def serve(*script, blocks=64, runner="cpu", **limits):
    """Serve on the toy; return tokens and ends by request, and the scheduler."""
    fields = {"max_step_tokens": 64, "max_concurrent": 8, "max_context": 60} | limits
    bounds = Limits(one_pool(blocks, 4), vocab=VOCAB, eos=frozenset({EOS}), **fields)
    engine = toy_runner(bounds.cache) if runner == "cpu" else fake_device_runner(bounds)
    if runner != "cpu":
        engine.warm_up()
    scheduler, channel = make_scheduler(bounds), Channel(*script)
    run(channel, scheduler, engine, compiler=GrammarCompiler(toy_vocabulary))
    return channel.tokens, channel.ends, scheduler


def asked(name, grammar, prompt=(1, 2, 3), max_tokens=40, temperature=1.0, seed=0, **fields):
    params = SamplingParams(temperature=temperature, seed=seed)
    return Submit(name, tuple(prompt), max_tokens, params, constraint=grammar, **fields)


@pytest.mark.parametrize("runner", ["cpu", "device"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("grammar", list(COMPLETE))
def test_an_answer_follows_its_grammar_to_the_end(grammar, temperature, runner):
    requests = [asked(f"r{i}", grammar, (1, 2, i % 5), temperature=temperature, seed=i) for i in range(8)]
    tokens, ends, _ = serve(requests, runner=runner)
    for request in requests:
        text, (finish, _) = text_of(tokens[request.request_id]), ends[request.request_id]
        if finish == "stop":
            assert COMPLETE[grammar].fullmatch(text), text
        else:
            assert finish == "length"
            assert text
    assert any(finish == "stop" for finish, _ in ends.values())


@pytest.mark.parametrize("runner", ["cpu", "device"])
def test_an_answer_is_the_same_alone_and_beside_others_that_preempt_it(runner):
    grammars = [LONG, LIST, COMPACT_JSON, None]
    requests = [asked(f"r{i}", grammars[i % 4], (1, 2, i), seed=i) for i in range(12)]
    alone = [serve([request], runner=runner)[:2] for request in requests]
    tokens, ends, scheduler = serve(requests, blocks=22, runner=runner)
    assert scheduler.load.preemptions_total > 0
    for request, (expected, end) in zip(requests, alone, strict=True):
        assert tokens[request.request_id] == expected[request.request_id]
        assert ends[request.request_id] == end[request.request_id]
        if request.constraint is None:
            assert tokens[request.request_id] == answer(request, 60)


def test_a_preempted_answer_goes_on_in_its_grammar_in_deterministic_mode():
    requests = [asked(f"r{i}", LONG, (1, 2, i), seed=i) for i in range(8)]
    expected = serve(requests, separate_prefill_decode=True)[0]
    tokens, _, scheduler = serve(requests, blocks=18, separate_prefill_decode=True)
    assert scheduler.load.preemptions_total > 0
    assert tokens == expected


def test_an_abort_ends_a_request_whose_grammar_is_compiled_or_followed():
    slow = asked("early", DIGITS)
    late = asked("late", DIGITS, max_tokens=1000)
    script = [[slow, Abort("early")], [late], *[[]] * 40, [Abort("late")]]
    _, ends, scheduler = serve(*script, max_context=4000, blocks=1001)
    assert ends["early"] == ("abort", "")
    assert ends["late"][0] in ("abort", "stop")
    assert scheduler.is_idle


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: nobody", "nobody"),
        ("start: /(/", "regex"),
        ('start: %json {"type": "nonsense"}', "nonsense"),
        ('start: %json {"type": "string", "uniqueItems": true}', "uniqueItems"),
    ],
)
def test_a_grammar_that_does_not_compile_refuses_its_request_alone(grammar, reason):
    tokens, ends, _ = serve([asked("bad", grammar), asked("good", DIGITS, max_tokens=4)])
    finish, message = ends["bad"]
    assert finish == "refused"
    assert message.startswith("the grammar of the answer cannot be used: ")
    assert reason in message
    assert "bad" not in tokens
    assert ends["good"][0] in ("length", "stop")


def test_a_grammar_that_no_token_continues_ends_its_request_alone():
    dead = 'start: "a" "x"'  # the toy has no token with an x
    tokens, ends, _ = serve([asked("dead", dead), asked("good", LIST), asked("plain", None)])
    assert text_of(tokens.get("dead", [])) in ("", "a")
    assert ends["dead"][0] == "refused"
    assert "no token" in ends["dead"][1]
    assert ends["good"][0] == "stop"
    assert tokens["plain"] == answer(asked("plain", None), 60)


def test_an_engine_without_a_tokenizer_refuses_grammars():
    channel = Channel([asked("a", DIGITS)])
    cache = one_pool(99, 4)
    run(channel, make_scheduler(Limits(cache, 8, 4, 64, VOCAB)), toy_runner(cache))
    assert channel.ends == {"a": ("refused", "this engine has no tokenizer; leave the constraint out")}


def test_a_tokenizer_that_cannot_be_read_refuses_the_request_and_is_read_again():
    readings = []

    def read():
        readings.append(1)
        if len(readings) == 1:
            raise TokenizerUnreadable("tokenizer.json is missing")
        return toy_vocabulary()

    compiler = GrammarCompiler(read)
    answers = []
    for name, grammar in (("first", DIGITS), ("second", LIST)):
        compiler.add(asked(name, grammar))
        while not compiler.is_idle:
            compiler.wait(1)
            answers += [constraint for _, constraint in compiler.take()]
    assert answers[0] == "tokenizer.json is missing"
    assert not isinstance(answers[1], str)


def test_a_grammar_is_compiled_once_and_the_last_ones_are_kept():
    readings = []
    compiler = GrammarCompiler(lambda: readings.append(1) or toy_vocabulary())
    texts = [f'start: "{TEXTS[i % 3]}"~{i + 1}' for i in range(MAX_LEXERS + 5)]
    taken = []
    for index, text in enumerate([*texts, texts[-1]]):
        compiler.add(asked(f"r{index}", text))
    while not compiler.is_idle:
        compiler.wait(1)
        taken += compiler.take()
    assert len(taken) == len(texts) + 1
    assert len(compiler._compiled) == MAX_LEXERS
    compiler.add(asked("last", texts[-1]))
    assert len(compiler.take()) == 1  # at once: it was compiled before
    assert readings == [1]


def test_a_stop_token_may_come_wherever_the_grammar_may_end():
    request = asked("a", LIST, stop_token_ids=(7,), ignore_eos=True)
    tokens, ends, _ = serve([request])
    assert ends["a"][0] in ("stop", "length")
    if ends["a"][0] == "stop":
        assert tokens["a"][-1] == 7
        text = text_of(tokens["a"][:-1])
        assert COMPLETE[LIST].fullmatch(text), text


def test_masks_that_are_computed_ahead_equal_those_computed_on_demand():
    def masks():
        return [TokenMask(ToyRule("thirds"), {EOS}, VOCAB) for _ in range(5)]

    ahead, on_demand = masks(), masks()
    for step in range(6):
        start(ahead)
        np.testing.assert_array_equal(rows_of([*ahead, None]), rows_of([*on_demand, None]))
        for index, mask in enumerate([*ahead, *on_demand]):
            mask.advance((step + index % 5) % VOCAB)
    assert rows_of([None, None]) is None


def test_a_complete_answer_ends_though_ends_are_ignored():
    tokens, ends, _ = serve([asked("a", LIST, ignore_eos=True, seed=3)])
    assert ends["a"] == ("stop", "")
    assert COMPLETE[LIST].fullmatch(text_of(tokens["a"]))


def test_a_compiler_that_breaks_refuses_its_request_alone():
    class Panic(BaseException):
        """As the library's panics, which are no exceptions of the ordinary kind."""

    def read():
        raise Panic

    compiler = GrammarCompiler(read)
    compiler.add(asked("a", DIGITS))
    compiler.wait(60)
    ((_, refusal),) = compiler.take()
    assert refusal == "the grammar of the answer broke its compiler (Panic)"


def test_a_grammar_whose_masks_take_too_long_ends_its_request():
    vocabulary = toy_vocabulary()
    grammar = Grammar(LLMatcher(vocabulary.tokenizer, DIGITS), vocabulary)
    for _ in range(1000):
        grammar.charge(0.004, tokens=1)  # its share
    assert (grammar.error, grammar.is_slow) == ("", False)
    grammar.charge(0.4, tokens=1)  # once is no harm
    assert (grammar.error, grammar.is_slow) == ("", True)
    grammar.charge(0.2, tokens=1)
    assert "takes too long at each token" in grammar.error
