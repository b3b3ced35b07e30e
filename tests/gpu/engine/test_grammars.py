"""Grammars and rules of tokens on a GPU: masks that are computed beside the forward pass reach their step.

Greedy answers are judged again, token by token: each is the likeliest that its grammar allows there, but for
what rounding decides (test_engine.py).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

from llguidance import LLMatcher, LLTokenizer  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from test_engine import BF16_NOISE, LIMITS, SPEC, Rig, ScriptedChannel  # noqa: E402

from wisp_runtime.engine.constrained.compiler import GrammarCompiler  # noqa: E402
from wisp_runtime.engine.constrained.vocabulary import Vocabulary  # noqa: E402
from wisp_runtime.engine.loop import run  # noqa: E402
from wisp_runtime.engine.scheduling.scheduler import Scheduler  # noqa: E402
from wisp_runtime.engine.transport.messages import SamplingParams, Submit, ThinkingRule  # noqa: E402

END = 0
WORDS = [
    f"{first}{second}".encode() for first in "abcdefghijklmnopqrst" for second in "aeiou0123456789_-.,;:"
]
TOKENS = [b"<end>", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b'",', b'"}', b"[[", *WORDS]
DATE = "start: /[0-9]{4}-[0-9]{2}-[0-9]{2}/"
NAMES = 'start: "[" NAME ("," NAME){3,6} "]"\nNAME: /"[a-t]{3,12}"/'
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "rank": {"enum": [1, 2, 3]}},
    "required": ["city", "rank"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
OBJECT = f"%llguidance {{}}\nstart: %json {json.dumps(CITY)}"


def is_city(text):
    found = json.loads(text)
    return set(found) == {"city", "rank"} and len(found["city"]) <= 8 and found["rank"] in (1, 2, 3)


COMPLETE = {
    DATE: re.compile(r"\d{4}-\d\d-\d\d").fullmatch,
    NAMES: lambda text: 4 <= len(json.loads(text)) <= 7,
    OBJECT: is_city,
}


class Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper, bos_token_id, eos_token_id, special_token_ids = True, None, END, (END,)
    tokens = tuple(TOKENS)

    def __call__(self, text):
        return [1 + byte for byte in (text.encode() if isinstance(text, str) else text)]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary(LLTokenizer(Tokens(), n_vocab=SPEC.vocab), np.array([END]))


@pytest.fixture(scope="module", params=["auto", "general"])
def rig(device, request):
    yield Rig(request.param)
    device.stream.use()


class Channel(ScriptedChannel):
    """Notes how each request ended, too."""

    def __init__(self, requests):
        super().__init__(requests)
        self.ends = {}

    def send(self, message):
        super().send(message)
        self.ends |= {event.request_id: event.finish for event in message.events if event.finish}


def serve(rig, vocabulary, requests):
    """Serve ``requests`` with their grammars; return tokens and ends by id."""
    limits = replace(LIMITS, eos=frozenset({END}))
    channel = Channel(requests)
    run(channel, Scheduler(limits), rig.runner, compiler=GrammarCompiler(lambda: vocabulary))
    assert channel.load.kv_blocks_used == 0
    return channel.tokens, channel.ends


def asked(name, grammar, *, temperature=0.0, max_tokens=120, seed=0, **fields):
    prompt = tuple(np.random.default_rng(seed).integers(1, SPEC.vocab, 9 + seed).tolist())
    params = SamplingParams(temperature=temperature, seed=seed, **fields.pop("sampling", {}))
    return Submit(name, prompt, max_tokens, params, constraint=grammar, **fields)


def text_of(tokens):
    return b"".join(TOKENS[token] for token in tokens if token != END).decode()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 6, 24])
def test_answers_follow_their_grammars_beside_others_that_have_none(rig, vocabulary, temperature, count):
    grammars = [*COMPLETE, None]
    requests = [
        asked(f"{n}", grammars[n % 4], temperature=temperature, seed=n, ignore_eos=n % 4 == 3)
        for n in range(count)
    ]
    tokens, ends = serve(rig, vocabulary, requests)
    for request in requests:
        answer = tokens[request.request_id]
        if request.constraint is None:
            assert len(answer) == request.max_tokens
            continue
        assert ends[request.request_id] == "stop", text_of(answer)
        assert COMPLETE[request.constraint](text_of(answer)), text_of(answer)


def test_a_greedy_answer_takes_the_likeliest_token_that_its_grammar_allows(rig, vocabulary):
    requests = [asked(f"{n}", grammar, seed=n) for n, grammar in enumerate([*COMPLETE] * 4)]
    tokens, _ = serve(rig, vocabulary, requests)
    largest = 0.0
    for request in requests[:3]:
        matcher = LLMatcher(vocabulary.tokenizer, request.constraint)
        answer = tokens[request.request_id]
        for step, token in enumerate(answer):
            words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(words, bitorder="little")[: SPEC.vocab])
            assert token in allowed
            logits = rig.logits_after([*request.prompt, *answer[:step]])
            largest = max(largest, float(logits[allowed].max() - logits[token]))
            matcher.consume_token(token)
    print(f"largest distance from the likeliest allowed token: {largest:.4f}")
    assert largest < BF16_NOISE


def test_rules_of_tokens_hold_in_steps_that_overlap(rig, vocabulary):
    banned = tuple((token,) for token in range(1, SPEC.vocab, 2))
    rules = {
        "even": {"sampling": {"bad_words": banned}, "ignore_eos": True},
        "long": {"sampling": {"min_tokens": 40, "logit_bias": ((END, 100.0),)}},
        "thinks": {
            "thinking": ThinkingRule(((7, 8),), ((9, 10),), is_open=True, max_tokens=5),
            "ignore_eos": True,
        },
    }
    requests = [asked(name, None, max_tokens=60, seed=n, **rules[name]) for n, name in enumerate(rules)]
    requests += [asked(f"plain{n}", None, max_tokens=60, seed=9 + n, ignore_eos=True) for n in range(5)]
    tokens, ends = serve(rig, vocabulary, requests)
    assert all(token % 2 == 0 for token in tokens["even"])
    assert (len(tokens["long"]), tokens["long"][-1], ends["long"]) == (41, END, "stop")
    assert tokens["thinks"][5:7] == [9, 10]
    assert all(len(tokens[f"plain{n}"]) == 60 for n in range(5))
