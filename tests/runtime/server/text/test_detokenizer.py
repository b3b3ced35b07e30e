"""Incremental detokenization: complete characters only, equal to decoding everything at once."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from wisp_runtime.engine.transport.messages import TokenEvent
from wisp_runtime.server.text.deltas import TextDeltas
from wisp_runtime.server.text.detokenizer import HELD_TOKENS, Detokenizer
from wisp_runtime.server.text.stop import StopFinder, StopStrings

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_engine import END, tokens_of


def decode_bytes(tokens):
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def run(tokens, prompt=(), decode=decode_bytes, skip=frozenset({END})):
    detokenizer = Detokenizer(decode, prompt, skip)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.finish()]


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (tokens_of("ab"), ["a", "b", ""]),
        (tokens_of("é"), ["", "é", ""]),
        (tokens_of("🙂!"), ["", "", "", "🙂", "!", ""]),
        (tokens_of("🙂")[:3], ["", "", "", "\ufffd"]),  # never became a character
        ([0xFF, *tokens_of("a")], ["", "\ufffda", ""]),  # cannot become one
        (tokens_of("\ufffd"), ["", "", "", "\ufffd"]),  # the character itself
        ([END, *tokens_of("a"), END], ["", "a", "", ""]),  # special tokens are not shown
        ([*tokens_of("é")[:1], END, *tokens_of("é")[1:]], ["", "", "é", ""]),
        ([300, *tokens_of("a")], ["", "a", ""]),  # padding of the vocabulary has no text
    ],
)
def test_text_is_shown_in_complete_characters(tokens, shown):
    assert run(tokens) == shown


def test_a_character_begun_in_the_prompt_is_finished():
    start, *rest = tokens_of("é")
    assert run(rest, prompt=[*tokens_of("caf"), start]) == ["é", ""]


@given(st.lists(st.one_of(st.integers(0, 127), st.integers(0, 260)), max_size=40))
def test_the_shown_text_equals_decoding_at_once(tokens):
    shown = [token for token in tokens if token != END]
    assert "".join(run(tokens)) == decode_bytes(shown) or len(shown) >= HELD_TOKENS


@given(st.text(max_size=40), st.text(max_size=10))
def test_any_text_comes_out_as_it_was(text, prompt):
    assert "".join(run(tokens_of(text), prompt=tokens_of(prompt))) == text


def test_undecodable_bytes_are_not_held_for_ever():
    shown = run([0xFF] * (2 * HELD_TOKENS))
    assert "".join(shown) == "\ufffd" * (2 * HELD_TOKENS)
    assert shown[HELD_TOKENS - 1] == "\ufffd" * HELD_TOKENS


def sentencepiece():
    vocab = {"<unk>": 0, "▁one": 1, "▁two": 2, "<0xC3>": 3, "<0xA9>": 4, "s": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("prompt", "tokens", "text"),
    [
        ([], [1, 2], "one two"),
        ([1], [2, 5], " twos"),  # the space before it belongs to the continuation
        ([], [1, 3, 4, 5], "oneés"),
        ([], [1, 1, 1, 1], "one one one one"),
    ],
)
def test_spaces_survive_a_decoder_that_strips_the_first(prompt, tokens, text):
    tokenizer = sentencepiece()
    assert "".join(run(tokens, prompt, lambda ids: tokenizer.decode(ids), frozenset())) == text


def deltas_of(tokens, stops, finish="stop"):
    text = TextDeltas(Detokenizer(decode_bytes, (), {END}), StopFinder(StopStrings(stops)))
    deltas = []
    for index, token in enumerate(tokens):
        deltas.append(text.push(TokenEvent("r", token, finish if index == len(tokens) - 1 else None)))
        if deltas[-1].finish:
            break
    return deltas


@given(
    tokens=st.lists(
        st.one_of(st.sampled_from([*b"ab", *"é🙂".encode()]), st.integers(0, 255)),
        min_size=1,
        max_size=HELD_TOKENS - 1,
    ),
    stops=st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=3),
)
def test_a_choice_is_its_decoded_text_up_to_the_first_stop_string(tokens, stops):
    expected = StopFinder(StopStrings(stops))
    text = expected.push(decode_bytes(tokens)) + expected.finish()
    deltas = deltas_of(tokens, stops, finish="length")
    assert "".join(delta.text for delta in deltas) == text
    assert deltas[-1].finish == ("stop" if expected.matched else "length")


@pytest.mark.parametrize(
    ("tokens", "stops", "finish", "texts", "reason"),
    [
        ([*b"hi", END], [], "stop", ["h", "i", ""], "stop"),
        ([*b"hi"], [], "length", ["h", "i"], "length"),
        ([*b"hi"], ["i"], "length", ["h", ""], "stop"),  # complete on the very last token
        ([*b"hi", END], ["i!"], "stop", ["h", "", "i"], "stop"),  # held back, then released
        ([*"é".encode()[:1], END], [], "stop", ["", "\ufffd"], "stop"),
        ([*b"a", *b"b"], [], "stop", ["a", ""], "stop"),  # a stop token of the request: not shown
    ],
)
def test_the_last_delta_has_the_reason_and_the_held_text(tokens, stops, finish, texts, reason):
    deltas = deltas_of(tokens, stops, finish)
    assert [delta.text for delta in deltas] == texts
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + [reason]
