"""Masks hold the model's tokens and no others, whatever the sizes of its vocabulary and its tokenizer's."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine.constrained.grammar import MIN_PARALLEL, Grammar
from wisp_runtime.engine.constrained.masks import TokenMask, complete, rows_of
from wisp_runtime.engine.constrained.rules import rules_of
from wisp_runtime.engine.constrained.vocabulary import read_vocabulary
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.admission import refusal
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit, ThinkingRule
from wisp_runtime.errors import ModelUnsupported

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from test_grammars import Channel, serve
from toy_engine import EOS, VOCAB, ToyRule, toy_runner
from toy_grammar import toy_vocabulary

END_OR_DIGIT = {0, 1, 2, 3, EOS}  # "0", "1", "2", "12", the end


def token_sets(masks):
    rows = rows_of(masks)
    return [
        set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in rows
    ]


@pytest.mark.parametrize("vocab", [3, 5, VOCAB, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("count", [1, MIN_PARALLEL])
def test_a_mask_has_the_models_tokens_alone_if_the_tokenizer_has_more_or_fewer(vocab, count):
    vocabulary = toy_vocabulary()

    def grammar():
        matcher = LLMatcher(vocabulary.tokenizer, "start: /[012]+/")
        parser = Grammar(matcher, vocabulary)
        parser.advance(1)
        return parser

    ruled = SamplingParams(bad_words=((2,),))
    masks: list[TokenMask] = [TokenMask(grammar(), {EOS}, vocab) for _ in range(count)]
    masks += [
        TokenMask(ToyRule("thirds"), {EOS}, vocab),
        TokenMask(None, {EOS}, vocab, rules_of(ruled, {EOS})),
    ]
    *parsed, filled, banned = token_sets(masks)
    model = set(range(vocab))
    assert parsed == [END_OR_DIGIT & model] * count
    assert filled == {token for token in range(vocab) if (token < VOCAB and token % 3) or token >= 32}
    assert banned == model - {2}


ALL_BUT_END = tuple((token,) for token in range(VOCAB) if token != EOS)


def ask(name, **sampling):
    return Submit(name, (1, 2), 8, SamplingParams(temperature=1.0, **sampling), ignore_eos=False)


def test_rules_that_leave_no_token_end_the_request_and_those_that_leave_the_end_end_the_answer():
    only_end = ask("end", bad_words=ALL_BUT_END, min_tokens=3)
    tokens, ends, _ = serve([ask("none", bad_words=(*ALL_BUT_END, (EOS,))), only_end, ask("plain")])
    assert ends["none"][0] == "refused"
    assert "no token" in ends["none"][1]
    assert (tokens["end"], ends["end"]) == ([EOS], ("stop", ""))
    assert ends["plain"][0] in ("stop", "length")


def test_masks_that_were_completed_are_not_computed_again():
    class Counting(ToyRule):
        filled = 0

        def fill(self, words):
            super().fill(words)
            self.filled += 1

    rule = Counting("thirds")
    mask = TokenMask(rule, {EOS}, VOCAB)
    complete([mask])
    assert token_sets([mask, None])[0] == {token for token in range(VOCAB) if token % 3}
    assert rule.filled == 1


LIMITS = Limits(one_pool(64, 4), vocab=40, max_step_tokens=8, max_concurrent=2, max_context=16)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"sampling": {"allowed_tokens": b""}},
            "allowed_tokens has 0 bytes; the bits of this model's 40 tokens",
        ),
        ({"sampling": {"allowed_tokens": b"\xff" * 4}}, "take 8"),
        ({"sampling": {"allowed_tokens": b"\xff" * 9}}, "has 9 bytes"),
        ({"sampling": {"allowed_tokens": b"\xff" * 8}}, None),
        ({"sampling": {"bad_words": ((1,), ())}}, "bad_words has no tokens"),
        ({"sampling": {"bad_words": ((1, 40),)}}, "outside 0 … 39"),
        ({"sampling": {"bad_words": ((-1,),)}}, "outside 0 … 39"),
        ({"sampling": {"bad_words": ((1, 39),)}}, None),
        ({"sampling": {"logit_bias": ((40, 1.0),)}}, "outside 0 … 39"),
        ({"stop_token_ids": (40,)}, "outside 0 … 39"),
        ({"stop_token_ids": (-1,)}, "outside 0 … 39"),
        ({"stop_token_ids": (0, 39)}, None),
        ({"thinking": ThinkingRule((), ())}, "has no tokens"),
        ({"thinking": ThinkingRule(((1,),), (), is_open=True, max_tokens=0)}, "has no tokens"),
    ],
)
def test_a_rule_that_is_none_for_this_model_is_refused_and_the_engine_goes_on(fields, says):
    sampling = SamplingParams(**fields.get("sampling", {}))
    bad = Submit("bad", (1,), 2, **{**fields, "sampling": sampling})
    why = refusal(bad, LIMITS)
    assert (says is None and why is None) or says in why
    channel = Channel([bad, Submit("good", (1,), 2, SamplingParams(temperature=0.0))])
    run(channel, Scheduler(LIMITS), toy_runner(LIMITS.cache))
    assert channel.ends["bad"] in ([("length", ""), ("stop", "")] if says is None else [("refused", why)])
    assert channel.ends["good"] == ("length", "")


def byte_tokenizer(folder):
    """Write a tokenizer of the 256 bytes and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "config.json").write_text(json.dumps({"vocab_size": 257}))


@pytest.mark.parametrize(("vocab", "size"), [(257, 257), (300, 300), (200, 257)])
def test_end_tokens_that_are_none_of_the_models_are_left_out(tmp_path, vocab, size):
    byte_tokenizer(tmp_path)
    vocabulary = read_vocabulary(tmp_path, vocab, (10_000, 7))
    assert vocabulary.end_ids.tolist() == [7]
    assert vocabulary.size == size
    with pytest.raises(ModelUnsupported, match="names no end token"):
        read_vocabulary(tmp_path, vocab, (10_000,))


@pytest.mark.parametrize("grammar", ["start: /[a-z]{2,40}/", 'start: "[" /[0-9]+/ "]"', "start: %json {}"])
def test_a_vocabulary_that_is_read_in_two_steps_gives_the_masks_of_one_that_is_read_at_once(
    tmp_path, grammar
):
    byte_tokenizer(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    tokenizers = (
        LLTokenizer(text, n_vocab=300, eos_token=[256]),
        read_vocabulary(tmp_path, 300, (256,)).tokenizer,
    )
    at_once, in_two = (LLMatcher(tokenizer, grammar) for tokenizer in tokenizers)
    noise = np.random.default_rng(0)
    for _ in range(20):
        mask = at_once.compute_bitmask()
        assert in_two.compute_bitmask() == mask
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        token = int(noise.choice(allowed))
        if token == 256:
            break
        assert at_once.consume_token(token)
        assert in_two.consume_token(token)
