import pytest

from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

EOS = 9


def sequence(max_length=100, eos=frozenset({EOS}), **fields):
    request = Submit("r", (1, 2, 3), 50, **fields)
    return Sequence(request, priority_key=(1, 1), max_length=max_length, eos=eos, vocab=40)


@pytest.mark.parametrize(
    ("fields", "max_length", "token", "expect"),
    [
        ({}, 100, 5, None),
        ({}, 100, EOS, "stop"),
        ({"ignore_eos": True}, 100, EOS, None),
        ({"stop_token_ids": (5,)}, 100, 5, "stop"),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, 100, EOS, "stop"),  # asked for by name
        ({}, 4, 5, "length"),
        ({}, 4, EOS, "stop"),  # it ended by itself, and just in time
    ],
)
def test_a_sequence_ends_when_it_should(fields, max_length, token, expect):
    assert sequence(max_length, **fields).append(token) == expect


def test_generated_tokens_are_counted_only_for_a_penalty():
    plain = sequence()
    penalised = sequence(sampling=SamplingParams(presence_penalty=0.5))
    for token in (4, 4, 5):
        plain.append(token)
        penalised.append(token)
    assert plain.counts is None
    assert dict(zip(penalised.counts.ids, penalised.counts.counts, strict=True)) == {4: 2, 5: 1}


def test_a_repetition_penalty_counts_the_prompt_too_and_survives_a_preemption():
    plain = sequence()
    repeats = sequence(sampling=SamplingParams(repetition_penalty=1.2))
    repeats.append(9)  # before its first look: nothing waits with a bitmask
    words = repeats.seen().words
    repeats.append(33)
    repeats.forget_computed()
    assert repeats.seen().words.tolist() == words.tolist() == [0b1000001110, 0b10]
    assert (plain.counts_tokens, repeats.counts_tokens, repeats.counts) == (False, True, None)


def test_starting_over_keeps_what_was_generated_and_said_to_the_client():
    one = sequence()
    one.computed_tokens, one.cached_tokens = 3, 2
    one.append(7)
    one.forget_computed()
    assert (one.tokens, one.pending_tokens, one.cached_tokens) == ([1, 2, 3, 7], 4, 2)
