from dataclasses import dataclass, replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.memory.buffers.attention import (  # noqa: E402
    DECODE_PARTIAL_ROWS,
    decode_arrivals,
    decode_attention,
)
from wisp_runtime.batch import Batch  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cuda.attention.decode_attention import DecodeAttention, grid_splits  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host_float32  # noqa: E402
from wisp_runtime.ops.cuda.device.workspace import Workspace  # noqa: E402

# Probabilities and the output are rounded to bf16 (2^-9 each, relative), scores are not; the largest value of
# a row stands for its scale.
ROUNDING = 2**-7
LEFT = -7.0  # in rows of the output that must stay as they are
NO_BATCH = np.zeros(0, np.int32)

MODELS = [  # (Hq, Hkv, Dh), Tb
    ((32, 8, 128), 16),  # Llama-3-8B
    ((14, 2, 64), 16),  # Qwen2-0.5B: groups of 7
    ((8, 8, 64), 64),
    ((4, 4, 80), 8),
    ((6, 2, 96), 24),
    ((12, 4, 192), 16),
    ((8, 1, 256), 32),
    ((64, 8, 64), 16),  # gpt-oss
    ((16, 2, 256), 16),  # Qwen3.6-35B-A3B
    ((24, 4, 256), 16),  # Qwen3.8-27B
    ((16, 1, 128), 48),  # the widest group
    ((9, 1, 256), 16),
    ((15, 1, 192), 8),
    ((20, 2, 64), 16),
    ((11, 1, 80), 16),
    ((13, 1, 96), 16),
    ((6, 2, 40), 8),  # head sizes between those that have a kernel
    ((3, 1, 72), 16),
    ((10, 1, 136), 40),
    ((2, 1, 248), 16),
    ((1, 1, 8), 8),
]
CONTEXTS = (1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 257, 600)


@dataclass
class Case:
    """A step on the host: bf16 arrays, what is not to be read is NaN."""

    q: np.ndarray  # [N, Hq, Dh]
    keys: np.ndarray
    values: np.ndarray
    batch: Batch
    window: int | None
    sinks: np.ndarray | None = None

    def expected(self) -> np.ndarray:
        """Return the attention in float32, ``[N, Hq * Dh]``; rows that are not written are LEFT."""
        size = self.q.shape[2]
        cache = (np.nan_to_num(x.astype(np.float32)) for x in (self.keys, self.values))
        q = self.q.astype(np.float32)
        options = {"scale": size**-0.5, "window": self.window, "sinks": self.sinks}
        out = reference.paged_attention(q, *cache, self.batch, **options)
        starts = np.array(self.batch.query_starts_host)
        for first, last, context in zip(
            starts[:-1], starts[1:], self.batch.context_lengths_host, strict=True
        ):
            if last - first != 1 or context == 0:
                out[first:last] = LEFT
        return out.reshape(len(q), -1)


def make(random, heads, block_tokens, contexts, *, queries=None, window=None, q_scale=3.0) -> Case:
    """Make sequences of ``contexts`` tokens with ``queries`` queries (1 each), in blocks dealt at random."""
    (query_heads, kv_heads, size), queries = heads, queries or [1] * len(contexts)
    counts = [-(-context // block_tokens) for context in contexts]
    blocks = random.permutation(sum(counts) + 2).astype(np.int32)
    tables = np.zeros((len(contexts), max(counts)), np.int32)
    shape = (len(blocks), kv_heads, block_tokens, size)
    keys, values = (np.full(shape, np.nan, np.float32).astype(BF16) for _ in range(2))
    used = 0
    for row, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        tables[row, :count] = blocks[used : used + count]
        used += count
        first = 0 if window is None else max(0, context - window)
        at = np.arange(first, context)
        for cache in (keys, values):
            fresh = random.standard_normal((len(at), kv_heads, size), np.float32)
            cache[tables[row, at // block_tokens], :, at % block_tokens] = fresh.astype(BF16)
    starts = np.cumsum([0, *queries]).astype(np.int32)
    q = (random.standard_normal((starts[-1], query_heads, size), np.float32) * q_scale).astype(BF16)
    lengths = np.array(contexts, np.int32)
    host = tuple(map(int, starts)), tuple(map(int, lengths))
    return Case(q, keys, values, Batch(*[NO_BATCH] * 3, starts, lengths, tables, NO_BATCH, *host), window)


def on_device(batch: Batch) -> Batch:
    return replace(
        batch,
        query_starts=to_device(batch.query_starts),
        context_lengths=to_device(batch.context_lengths),
        block_tables=to_device(batch.block_tables),
    )


def attend(device, case: Case, *, attention=None, max_context=None) -> np.ndarray:
    """Run the kernel on queries between other heads, as in the output of the QKV GEMM."""
    tokens, heads, size = case.q.shape
    wide = np.full((tokens, heads + 3, size), np.nan, np.float32).astype(BF16)
    wide[:, 1 : heads + 1] = case.q
    out = to_device(np.full((tokens, heads * size), LEFT, np.float32), BF16)
    (attention or DecodeAttention(device))(
        to_device(wide)[:, 1 : heads + 1],
        to_device(case.keys),
        to_device(case.values),
        on_device(case.batch),
        scale=size**-0.5,
        window=case.window,
        sinks=None if case.sinks is None else to_device(case.sinks),
        max_context=max_context or max(case.batch.context_lengths_host),
        out=out,
    )
    return to_host_float32(out)


def assert_close(actual, expected):
    scale = np.abs(expected).max(axis=1, keepdims=True)
    error = np.abs(actual - expected) / scale
    assert error.max() <= ROUNDING, f"largest error {error.max():.2e} of a row's largest value"
    norms = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((actual * expected).sum(axis=1) / norms).min() > 0.9999


@pytest.mark.parametrize(("heads", "block_tokens"), MODELS)
def test_attention_equals_its_reference_for_every_model(device, random, heads, block_tokens):
    case = make(random, heads, block_tokens, CONTEXTS)
    assert_close(attend(device, case), case.expected())


@pytest.mark.parametrize("context", [1, 64, 65, 512, 1023, 7900])
@pytest.mark.parametrize(("heads", "block_tokens"), [MODELS[0], MODELS[1], MODELS[8]])
def test_one_sequence_is_split_and_reduced(device, random, heads, block_tokens, context):
    case = make(random, heads, block_tokens, [context])
    assert_close(attend(device, case), case.expected())


def test_long_sequences_among_many_short_ones_are_split_too(device, random):
    short = random.integers(1, 300, 70)
    case = make(random, (32, 8, 64), 16, [9000, *short[:40], 3000, *short[40:], 700])
    assert_close(attend(device, case, max_context=16384), case.expected())


@pytest.mark.parametrize("window", [1, 8, 24, 100, 500, 2000])
def test_a_window_hides_what_is_older(device, random, window):
    case = make(random, (8, 2, 128), 16, [1, 9, 99, 100, 101, 640, 1999], window=window)
    assert_close(attend(device, case), case.expected())


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize(("heads", "block_tokens"), [((64, 8, 64), 16), ((8, 1, 256), 32), ((20, 2, 64), 16)])
def test_sinks_count_once_whatever_the_splits(device, random, heads, block_tokens, window):
    case = make(random, heads, block_tokens, [1, 9, 128, 700, 7900], window=window)
    case.sinks = random.uniform(-3, 12, heads[0]).astype(np.float32)
    assert_close(attend(device, case, max_context=131072), case.expected())


def test_a_sink_far_below_or_above_all_scores_does_not_overflow(device, random):
    case = make(random, (4, 2, 64), 16, [1, 300])
    plain = case.expected().reshape(2, 4, 64)
    case.sinks = np.array([-1e30, -np.inf, 300.0, 1e4], np.float32)
    out = attend(device, case).reshape(2, 4, 64)
    assert_close(out[:, :2].reshape(2, -1), plain[:, :2].reshape(2, -1))
    assert np.abs(out[:, 2:]).max() < 1e-20


def test_other_sequences_of_a_mixed_step_are_left_alone(device, random):
    contexts, queries = [300, 40, 1, 77, 500], [1, 40, 1, 3, 1]
    case = make(random, (8, 2, 128), 16, contexts, queries=queries)
    assert_close(attend(device, case), case.expected())


def test_padding_sequences_are_left_alone(device, random):
    case = make(random, (8, 2, 128), 16, [300, 17, 40, 500])
    for row in (1, 3):
        case.batch.context_lengths[row] = 0
    expected = case.expected()
    expected[[1, 3]] = LEFT
    assert_close(attend(device, case), expected)


def test_the_order_of_arrival_does_not_change_a_bit(device, random):
    case = make(random, (32, 8, 128), 16, [4000, 100])
    first = attend(device, case)
    for _ in range(5):
        assert np.array_equal(attend(device, case), first)
    arrived = device.workspace.zeroed("decode_attention.arrivals", (2 * 32,), np.uint32)
    assert not cp.asnumpy(arrived).any()


@pytest.mark.parametrize(("heads", "block_tokens"), MODELS)
@pytest.mark.parametrize("window", [None, 128])
def test_batch_invariant_splits_give_a_sequence_the_same_bits_in_any_batch(
    device, random, heads, block_tokens, window
):
    case = make(random, heads, block_tokens, [*CONTEXTS, 3000], window=window)
    case.sinks = random.uniform(-3, 12, heads[0]).astype(np.float32)
    attention = DecodeAttention(device)
    attention.set_batch_invariant()
    together = attend(device, case, attention=attention, max_context=4096)
    assert_close(together, case.expected())
    for rows in ([len(CONTEXTS)], [0], [12, 11, 3], [5, len(CONTEXTS), 5, 5]):
        contexts = [case.batch.context_lengths_host[row] for row in rows]
        starts = np.arange(len(rows) + 1, dtype=np.int32)
        batch = replace(
            case.batch,
            query_starts=starts,
            context_lengths=np.array(contexts, np.int32),
            block_tables=case.batch.block_tables[rows],
            query_starts_host=tuple(map(int, starts)),
            context_lengths_host=tuple(contexts),
        )
        found = attend(
            device, replace(case, q=case.q[rows], batch=batch), attention=attention, max_context=4096
        )
        assert np.array_equal(found, together[rows])


def buffers(sequences, heads, head_size):
    return *decode_attention(DECODE_PARTIAL_ROWS, head_size), decode_arrivals(sequences, heads)


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_one_graph_serves_all_lengths(device, random, batch):
    contexts = [random.integers(1, 700, batch) for _ in range(3)]
    case = make(random, (8, 2, 128), 16, [700] * batch)
    tokens, heads, size = case.q.shape
    out, steps = full_nan((tokens, heads * size), BF16), on_device(case.batch)
    arrays = to_device(case.q), to_device(case.keys), to_device(case.values)
    attention = DecodeAttention(device)
    device.workspace.reserve(buffers(batch, heads, size))

    def launch():
        attention(*arrays, steps, scale=size**-0.5, window=None, max_context=700, out=out)

    launch()
    device.stream.begin_capture()
    launch()
    graph = device.stream.end_capture()
    for lengths in contexts:
        steps.context_lengths.set(lengths.astype(np.int32))
        device.stream.synchronize()
        graph.launch(device.stream)
        now = replace(case, batch=replace(case.batch, context_lengths_host=tuple(map(int, lengths))))
        assert_close(to_host_float32(out), now.expected())


def test_nan_in_a_token_that_is_seen_comes_through(device, random):
    case = make(random, (4, 2, 128), 16, [600, 600])
    case.values[case.batch.block_tables[0, 3], 1, 5] = np.nan
    out = attend(device, case).reshape(2, 4, 128)
    assert np.isnan(out[0, 2:]).all()
    assert not np.isnan(out[0, :2]).any()
    assert not np.isnan(out[1]).any()


def test_large_scores_do_not_overflow(device, random):
    case = make(random, (4, 2, 128), 16, [1, 300], q_scale=300.0)
    assert_close(attend(device, case), case.expected())


def test_reserved_buffers_suffice(device, random):
    own = replace(device, workspace=Workspace())
    attention = DecodeAttention(own)
    own.workspace.reserve(buffers(64, 8, 128))
    own.workspace.seal()
    for batch, context in ((1, 700), (5, 700), (64, 30)):
        case = make(random, (8, 2, 128), 16, [context] * batch)
        assert_close(attend(own, case, attention=attention, max_context=131072), case.expected())


@pytest.mark.parametrize(
    ("batch", "kv_heads", "heads", "seen", "expect"),
    [
        (1, 8, 32, 512, (33, 9)),  # no part has less than 64 tokens
        (1, 8, 32, 64, (33, 2)),  # 64 tokens may lie in 5 tiles, if a window begins within one
        (1, 8, 32, 48, (33, 1)),
        (1, 8, 32, 8192, (33, 34)),
        (64, 8, 32, 131072, (33, 97)),
        (1, 2, 14, 8192, (132, 64)),  # the last block to arrive reads 64 partial results, no more
        (2, 1, 128, 131072, (64, 66)),  # 16384 rows of partial results
    ],
)
def test_a_grid_has_as_many_splits_as_its_partials_hold(batch, kv_heads, heads, seen, expect):
    assert grid_splits(batch, kv_heads, heads, seen, wanted_blocks=264) == expect


def test_arrays_that_do_not_fit_are_refused(device):
    tables = full_nan((2, 4), np.int32)
    batch = Batch(
        *[NO_BATCH] * 3, full_nan((3,), np.int32), full_nan((2,), np.int32), tables, NO_BATCH, (), ()
    )
    good = {
        "q": full_nan((2, 8, 128), BF16),
        "keys": full_nan((9, 2, 16, 128), BF16),
        "values": full_nan((9, 2, 16, 128), BF16),
        "batch": batch,
        "window": None,
        "out": full_nan((2, 1024), BF16),
    }
    refused = (
        {"q": full_nan((2, 7, 128), BF16), "out": full_nan((2, 896), BF16)},  # Hq is no multiple of Hkv
        {"q": full_nan((2, 34, 128), BF16), "out": full_nan((2, 4352), BF16)},  # groups of 17
        {"q": full_nan((2, 8, 64), BF16), "out": full_nan((2, 512), BF16)},  # another Dh
        {"q": full_nan((8, 2, 128), BF16).reshape(2, 8, 128)[:, ::2]},
        {"keys": full_nan((9, 2, 12, 128), BF16)},
        {"values": full_nan((8, 2, 16, 128), BF16)},
        {"out": full_nan((2, 8, 128), BF16)},
        {"out": full_nan((2, 1024), np.float32)},
        {"window": 0},
        {"sinks": full_nan((2,), np.float32)},
        {"sinks": full_nan((8,), BF16)},
        {"batch": replace(batch, query_starts=full_nan((2,), np.int32))},
        {"batch": replace(batch, block_tables=full_nan((2, 4), np.int64))},
    )
    for change in refused:
        with pytest.raises(ShapeError):
            DecodeAttention(device)(**(good | change), scale=1.0, max_context=64)
