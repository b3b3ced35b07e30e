import time

import numpy as np
import pytest

from wisp_runtime.batch import Batch, Sampled, SamplingBatch
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.execution.sampler import SamplingRows, sampling_batch, tokens_of
from wisp_runtime.engine.scheduling.plan import Chunk
from wisp_runtime.engine.scheduling.sequence import MAX_COUNTED, Sequence
from wisp_runtime.engine.transport.messages import SamplingParams, Submit, TokenLogprobs
from wisp_runtime.layers.cache import ModelCache, kv_cache
from wisp_runtime.models.model import Output

VOCAB = 128256


def chunk(samples=True, generated=(), **sampling):
    request = Submit("r", (1, 2, 3), 9, SamplingParams(**sampling))
    sequence = Sequence(request, priority_key=(1, 1), max_length=99, eos=frozenset(), vocab=VOCAB)
    sequence.cache.tables[0].append(0)
    for token in generated:
        sequence.append(token)
    return Chunk.prefill(sequence, 0, len(sequence.tokens), samples=samples)


def test_penalties_count_no_more_tokens_than_a_gpu_has_room_for():
    generated = (*range(MAX_COUNTED + 7), MAX_COUNTED + 6, 3)
    batch = sampling_batch((chunk(generated=generated, presence_penalty=1.0),))
    assert batch.count_starts.tolist() == [0, MAX_COUNTED]
    assert batch.count_ids.tolist() == list(range(MAX_COUNTED))  # the first ones
    assert batch.counts[:5].tolist() == [1, 1, 1, 2, 1]


@pytest.mark.parametrize(
    ("fields", "generated"),
    [
        ({"frequency_penalty": 0.1}, range(4000)),  # before: 46 ms, ten times a decode step of an 8B
        ({"logit_bias": tuple((token, 1.0) for token in range(1024))}, ()),  # before: 3 ms
        ({"repetition_penalty": 1.1}, range(4000)),
    ],
)
def test_penalties_and_biases_of_32_rows_cost_a_tenth_of_a_decode_step(fields, generated):
    plan = tuple(chunk(generated=generated, **fields) for _ in range(32))
    times_s = []
    for _ in range(20):
        began_s = time.thread_time()  # not the time of other processes
        sampling_batch(plan)
        times_s.append(time.thread_time() - began_s)
    assert min(times_s) < 0.48e-3  # of 4.83 ms


def test_a_repetition_penalty_counts_prompt_and_answer_however_many():
    answer = tuple(range(5000, 5000 + MAX_COUNTED + 7))
    plain, repeats = chunk(), chunk(generated=answer, repetition_penalty=1.3)
    batch = sampling_batch((plain, repeats))
    np.testing.assert_array_equal(batch.repetition_penalty, np.float32([1.0, 1.3]))
    bits = np.unpackbits(batch.seen.view(np.uint8), axis=1, bitorder="little")
    assert bits.shape == (2, -(-VOCAB // 32) * 32)
    assert np.flatnonzero(bits[0]).tolist() == []
    assert np.flatnonzero(bits[1]).tolist() == [1, 2, 3, *answer]
    repeats.sequence.append(VOCAB - 1)
    later = np.unpackbits(sampling_batch((repeats,)).seen.view(np.uint8), bitorder="little")
    assert np.flatnonzero(later).tolist() == [1, 2, 3, *answer, VOCAB - 1]
    assert sampling_batch((plain,)).seen is None


def test_each_row_carries_its_own_request():
    plan = (
        chunk(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=-1),
        chunk(samples=False, temperature=9.0),  # samples nothing, so it has no row
        chunk(generated=(4, 4, 6), frequency_penalty=1.5, logit_bias=((8, -2.0), (9, 3.0))),
    )
    batch = sampling_batch(plan)
    assert batch.temperature.tolist() == [0.5, 1.0]
    assert batch.top_k.tolist() == [7, 0]
    np.testing.assert_array_equal(batch.top_p, np.float32([0.9, 1.0]))
    np.testing.assert_array_equal(batch.min_p, np.float32([0.1, 0.0]))
    assert batch.seeds.tolist() == [2**64 - 1, 0]
    assert batch.steps.tolist() == [3, 6]
    assert batch.frequency_penalty.tolist() == [0.0, 1.5]
    assert (batch.count_starts.tolist(), batch.count_ids.tolist(), batch.counts.tolist()) == (
        [0, 0, 2],
        [4, 6],
        [2, 1],
    )
    assert (batch.bias_starts.tolist(), batch.bias_ids.tolist(), batch.biases.tolist()) == (
        [0, 0, 2],
        [8, 9],
        [-2.0, 3.0],
    )


@pytest.mark.parametrize(("wanted", "expect"), [((None, None), -1), ((None, 0), 0), ((2, 5), 5)])
def test_log_probabilities_are_computed_for_the_row_that_wants_most(wanted, expect):
    assert sampling_batch(tuple(chunk(logprobs=count) for count in wanted)).logprobs == expect


def test_each_request_gets_as_many_alternatives_as_it_asked_for():
    plan = tuple(chunk(logprobs=count) for count in (None, 0, 1, 2))
    sampled = Sampled(
        np.array([3, 4, 5, 6]),
        np.array([-0.5, -1.0, -2.0, -3.0]),
        np.array([[9, 8]] * 4),
        np.array([[-0.25, -0.75]] * 4),
    )
    assert [(token.token, token.logprobs) for token in tokens_of(plan, sampled, [True] * 4)] == [
        (3, None),
        (4, TokenLogprobs(-1.0, ())),
        (5, TokenLogprobs(-2.0, ((9, -0.25),))),
        (6, TokenLogprobs(-3.0, ((9, -0.25), (8, -0.75)))),
    ]


class Scripted:
    """A model whose logits are given."""

    def __init__(self, logits):
        self.logits = np.array(logits, np.float32)

    def forward(self, batch: Batch, cache: ModelCache) -> Output:
        return Output(self.logits)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_row_without_finite_numbers_is_an_error_of_that_request_alone(broken):
    cache = kv_cache(np.zeros((1, 1, 1, 4, 1)), np.zeros((1, 1, 1, 4, 1)), 4)
    model = Scripted([[0.0, 2.0, 1.0], [broken] * 3])
    runner = CpuRunner(model, cache, lambda logits, _: Sampled(logits.argmax(axis=1).astype(np.int32)))
    good, bad = run_step(runner, (chunk(), chunk()))
    assert (good.token, good.error) == (1, "")
    assert "not finite" in bad.error


def same(one, other):
    names = SamplingBatch.__dataclass_fields__
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("penalties", [{"presence_penalty": 1.0}, {"repetition_penalty": 1.5}], ids=str)
def test_rows_that_are_kept_from_step_to_step_are_those_that_would_be_collected(penalties):
    rows, plain, penalised = SamplingRows(), chunk(seed=5, logit_bias=((3, 1.0),)), chunk(**penalties)
    plans = [(plain,), (plain,), (plain, chunk(seed=6)), (penalised,), (plain, penalised), (plain,), ()]
    for plan in plans * 2:
        later = tuple(each._replace(start=each.start + 1) for each in plan)
        assert same(rows.batch(plan), sampling_batch(plan))
        penalised.sequence.append(4)
        assert same(rows.batch(later), sampling_batch(later))
    assert rows.batch(plans[0]).temperature is rows.batch(plans[0]).temperature
