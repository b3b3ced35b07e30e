"""Prefill attention against attention in float32, both on the GPU, for both families of kernels.

All memory that must not be read is NaN: slots beyond a context or before every window, blocks of nobody, the
rest of q's rows, and the output until it is written.
"""

import math
import os
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.memory.buffers.attention import (  # noqa: E402
    max_work_tiles,
    prefill_partials,
    prefill_tile,
    work_tiles,
)
from wisp_runtime.batch import Batch, StepKind  # noqa: E402
from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.attention.prefill_attention import PrefillAttention  # noqa: E402
from wisp_runtime.ops.cuda.attention.prefill_plan import PORTABLE, WGMMA  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device  # noqa: E402
from wisp_runtime.ops.cuda.device.workspace import Workspace  # noqa: E402

# Weights and output are rounded to bf16, each by 2^-9 at most: in the mean 2.3e-3 of a row's norm.
MEAN_ERROR, WORST_ERROR = 4e-3, 1.5e-2
NUMBERS, MAX_SHIFT = 1 << 24, 1 << 20
SPARE = 64  # columns of q's rows beyond the heads, as in the output of the QKV GEMM
LLAMA = (32, 8, 128)  # Hq, Hkv, Dh
SMALL = (8, 2, 128)
SIZES = (8, 32, 64, 72, 80, 96, 112, 128, 136, 192, 256)
MAX_QUERIES, MAX_PREFIX, ROUNDS = 1 << 20, 1 << 20, 5
if "WISP_SANITIZER" in os.environ:  # makes kernels a hundred times slower
    LLAMA, SIZES = SMALL, (64, 80, 128)
    MAX_QUERIES, MAX_PREFIX, ROUNDS = 130, 400, 2  # a prefix of 400 is still split


@pytest.fixture(params=[PORTABLE, WGMMA], ids=["portable", "wgmma"])
def attend(request, device):
    if request.param is WGMMA and not device.arch.startswith("sm_90"):
        pytest.skip("Hopper's kernels")
    return PrefillAttention(device, request.param)


@cache
def numbers():
    """Normal numbers that bf16 can hold, float32 on the GPU: more than any array of a test has."""
    host = np.random.default_rng(7).standard_normal(NUMBERS + MAX_SHIFT, np.float32)
    return widen(to_device(host, BF16))


def some(random, *shape: int):
    """Return an array of them."""
    start = int(random.integers(MAX_SHIFT))
    return numbers()[start : start + math.prod(shape)].reshape(shape)


def narrow(array):
    """Float32 to bf16, exactly."""
    return (array.view(cp.uint32) >> 16).astype(cp.uint16).view(BF16)


def widen(array):
    return (array.view(cp.uint16).astype(cp.uint32) << 16).view(cp.float32)


@dataclass
class Case:
    """A step: arrays for the kernel, and for the reference each sequence's q, k and v as float32."""

    q: object
    keys: object
    values: object
    batch: Batch
    sequences: list
    window: int | None
    sinks: object = None

    def out(self):
        tokens, heads, size = self.q.shape
        return full_nan((tokens, heads * size), BF16)


def make(chunks, shape=SMALL, block_tokens=16, window=None, seed=0) -> Case:
    """Make a step of (queries, context) chunks whose blocks lie anywhere, none of more than ``MAX_*``."""
    chunks = [
        (min(queries, MAX_QUERIES), min(queries, MAX_QUERIES) + min(context - queries, MAX_PREFIX))
        for queries, context in chunks
    ]
    heads, kv_heads, size = shape
    random = np.random.default_rng(seed)
    counts = [-(-context // block_tokens) for _, context in chunks]
    order = random.permutation(sum(counts) + 3).astype(np.int32)
    tables = np.zeros((len(chunks), max(counts) + 1), np.int32)
    caches = [cp.full((len(order), block_tokens, kv_heads, size), cp.nan, cp.float32) for _ in "kv"]
    starts = (0, *np.cumsum([queries for queries, _ in chunks]).tolist())
    q = some(random, starts[-1], heads, size)
    sequences = []
    for row, (queries, context) in enumerate(chunks):
        tables[row, : counts[row]], order = order[: counts[row]], order[counts[row] :]
        token = np.arange(max(0, context - queries - window + 1) if window else 0, context)
        blocks, offsets = cp.asarray(tables[row, token // block_tokens]), cp.asarray(token % block_tokens)
        kv = [some(random, context, kv_heads, size) for _ in caches]
        for cached, new in zip(caches, kv, strict=True):
            cached[blocks, offsets] = new[token[0] :]
        sequences.append((q[starts[row] : starts[row + 1]], *kv))
    wide = full_nan((starts[-1], heads * size + SPARE), BF16)
    wide.view(cp.uint16)[:, : heads * size] = narrow(q).view(cp.uint16).reshape(starts[-1], -1)
    return Case(
        cp.ndarray(q.shape, BF16, wide.data, (wide.strides[0], size * BF16.itemsize, BF16.itemsize)),
        *(narrow(cp.ascontiguousarray(cached.transpose(0, 2, 1, 3))) for cached in caches),
        batch_of(starts, [context for _, context in chunks], tables),
        sequences,
        window,
    )


def batch_of(starts, contexts, tables) -> Batch:
    unused = np.zeros(0, np.int32)
    return Batch(
        **dict.fromkeys(("tokens", "positions", "slots", "logit_rows"), unused),
        query_starts=to_device(starts, np.int32),
        context_lengths=to_device(contexts, np.int32),
        block_tables=to_device(tables),
        query_starts_host=tuple(starts),
        context_lengths_host=tuple(contexts),
    )


def expected(q, k, v, window, sinks=None):
    """Attention of one sequence by its formula, float32, a head at a time: ``[n, Hq, Dh]``."""
    (queries, heads, size), context, kv_heads = q.shape, *k.shape[:2]
    age = cp.arange(context - queries, context)[:, None] - cp.arange(context)
    hidden = (age < 0) | (age >= (window or context))
    out = cp.empty(q.shape, cp.float32)
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = q[:, head] @ k[:, shared].T * cp.float32(size**-0.5)
        scores = cp.where(hidden, cp.float32(-cp.inf), scores)
        highest = scores.max(axis=1, keepdims=True)
        weights = cp.exp(scores - highest)
        total = weights.sum(axis=1, keepdims=True)
        if sinks is not None:
            total = total + cp.exp(sinks[head] - highest)
        out[:, head] = weights @ v[:, shared] / total
    return out


def check(attend, case: Case) -> None:
    """Run ``case`` and compare every row of every head; rows of one query must be left alone."""
    out = case.out()
    scale = case.q.shape[2] ** -0.5
    options = {"scale": scale, "window": case.window, "sinks": case.sinks}
    attend(case.q, case.keys, case.values, case.batch, **options, out=out)
    actual = widen(out).reshape(case.q.shape)
    starts = case.batch.query_starts_host
    for row, (q, k, v) in enumerate(case.sequences):
        part = actual[starts[row] : starts[row + 1]]
        if len(q) == 1:
            assert bool(cp.isnan(part).all()), f"sequence {row} is decode's"
            continue
        reference = expected(q, k, v, case.window, case.sinks)
        error = cp.sqrt(((part - reference) ** 2).sum(axis=2) / (reference**2).sum(axis=2))
        assert bool(cp.isfinite(part).all()), f"sequence {row}: {int(cp.isnan(part).sum())} NaN"
        worst = divmod(int(error.argmax()), error.shape[1])
        assert float(error.max()) < WORST_ERROR, (
            f"sequence {row}, token and head {worst}: {float(error.max())}"
        )
        assert float(error.mean()) < MEAN_ERROR, f"sequence {row}: mean error {float(error.mean())}"


def test_prompts_of_all_lengths_in_one_step(attend):
    """Ends of tiles of 64 and 128 rows and tokens, and beyond."""
    check(attend, make([(n, n) for n in (2, 3, 17, 63, 64, 65, 127, 129, 300, 1000)]))


def test_a_long_prompt(attend):
    check(attend, make([(4096, 4096)], LLAMA))


@pytest.mark.parametrize("prefix", [0, 1, 15, 16, 500, 7884])
@pytest.mark.parametrize("queries", [2, 16, 100])
def test_a_chunk_behind_a_cached_prefix(attend, prefix, queries):
    """Few work items over a long context: these are split and joined."""
    check(attend, make([(queries, prefix + queries)], LLAMA))


def test_chunks_of_all_kinds_between_decodes(attend):
    chunks = [(1, 40), (16, 516), (1, 1), (40, 40), (130, 1000), (1, 300), (3, 2900), (1, 16), (64, 80)]
    check(attend, make(chunks))


@pytest.mark.parametrize("size", SIZES)
def test_heads_of_all_sizes(attend, size):
    check(attend, make([(5, 300), (150, 150), (90, 1200)], (4, 2, size)))


@pytest.mark.parametrize("group", [1, 4, 7, 8])
def test_groups_of_all_sizes(attend, group):
    check(attend, make([(19, 150), (9, 2000), (200, 333)], (2 * group, 2, 64)))


@pytest.mark.parametrize("window", [1, 5, 100, 4096])
def test_a_window_hides_all_before_it(attend, window):
    check(attend, make([(50, 400), (3, 3), (16, 5000), (300, 700)], window=window))


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("shape", [(64, 8, 64), (6, 2, 128), (7, 1, 256)])
def test_sinks_count_once_whatever_the_splits(attend, shape, window):
    case = make([(50, 400), (3, 3), (16, 5000), (300, 700)], shape, window=window)
    case.sinks = to_device(np.random.default_rng(3).uniform(-3, 6, shape[0]).astype(np.float32))
    check(attend, case)


def test_layers_of_two_kinds_in_turn_keep_their_tables(attend):
    full = make([(40, 900), (70, 70)], seed=1)
    windowed = make([(40, 900), (70, 70)], seed=2, window=100)
    for _ in range(2):
        check(attend, full)
        check(attend, windowed)
    known = dict(attend._planned)
    check(attend, full)
    assert len(known) == 2
    assert attend._planned == known


@pytest.mark.parametrize("block_tokens", [8, 16, 24, 32, 40, 64, 128, 256])
def test_blocks_of_all_sizes(attend, block_tokens):
    check(attend, make([(33, 333), (2, 2), (150, 150)], block_tokens=block_tokens))


def test_the_same_bits_every_time(attend):
    """Partial results are reduced in a fixed order, and every launch leaves the counters unchanged."""
    cases = [make([(16, 7900)], LLAMA), make([(300, 300), (16, 900)], LLAMA)]
    actual = []
    for _ in range(ROUNDS):
        for case in cases:
            out = case.out()
            batch = replace(case.batch)
            attend(case.q, case.keys, case.values, batch, scale=0.1, window=None, out=out)
            actual.append(out.view(cp.uint16))
    for repeat in range(2, len(actual)):
        assert bool((actual[repeat] == actual[repeat % 2]).all())


@pytest.mark.parametrize("shape", [SMALL, (6, 2, 64)])  # heads of a token in one tile, and in two
@pytest.mark.parametrize("boundary", [16, 48, 112, 2031])  # the last leaves a single token
def test_batch_invariant_bits_do_not_depend_on_chunking(attend, shape, boundary):
    """Scores are large, so that a row's maximum is far from zero in the tiles of which it sees nothing."""
    attend.set_batch_invariant()
    case = make([(2032, 2032)], shape)
    tokens = len(case.q)
    whole = scored(attend, case, 0, tokens)
    boundary = min(boundary, tokens - 1)
    chunked = cp.concatenate([scored(attend, case, 0, boundary), scored(attend, case, boundary, tokens)])
    differing = cp.flatnonzero((chunked != whole).any(axis=1))
    assert len(differing) == 0, f"{len(differing)} tokens, the first is {int(differing[0])}"


def scored(attend, case, begin, end):
    """Attend with the queries from ``begin`` to ``end`` of the one sequence; return the bits."""
    batch = batch_of((0, end - begin), [end], cp.asnumpy(case.batch.block_tables))
    batch = replace(batch, kind=StepKind.PREFILL)
    out = full_nan((end - begin, case.out().shape[1]), BF16)
    attend(case.q[begin:end], case.keys, case.values, batch, scale=3.0, window=None, out=out)
    return out.view(cp.uint16)


def test_a_plan_is_made_once_for_all_layers(attend):
    first, second = make([(40, 90)], seed=1), make([(40, 90)], seed=2)
    second = replace(second, batch=first.batch)
    for cached, other in ((second.keys, first.values), (second.values, first.keys)):  # of another layer
        cached.view(cp.uint16)[...] = other.view(cp.uint16)
    second.sequences = [(second.sequences[0][0], first.sequences[0][2], first.sequences[0][1])]
    check(attend, first)
    (known,) = attend._planned.values()
    check(attend, second)
    assert next(iter(attend._planned.values())) is known


def test_a_step_of_decodes_launches_nothing(attend):
    check(attend, make([(1, 5), (1, 70)]))


def test_reserved_buffers_suffice(attend, device):
    fresh = replace(device, workspace=Workspace())
    attend = PrefillAttention(fresh, attend._variants)
    heads, kv_heads, head_size = LLAMA
    tile = prefill_tile(attend.tiles, head_size)
    sizes = {"group": heads // kv_heads, "kv_heads": kv_heads, "sm_count": device.sm_count}
    partials = prefill_partials(tile.rows * (tile.head_size + 2), device.sm_count)
    fresh.workspace.reserve((work_tiles(max_work_tiles(600, 9, tile.rows, **sizes)), *partials))
    fresh.workspace.seal()
    check(attend, make([(16, 7900)], LLAMA))
    check(attend, make([(2, 100)] * 8 + [(584, 584)], LLAMA))


@pytest.mark.parametrize(
    "change",
    [
        lambda case: replace(case, q=case.q[:, :3]),  # no multiple of the KV heads
        lambda case: replace(case, q=case.q[:, :, :64]),  # heads of another size
        lambda case: replace(case, q=case.q[:, :, ::-1]),
        lambda case: replace(case, keys=case.keys[:, :, ::2], values=case.values[:, :, ::2]),
        lambda case: replace(case, values=case.values[:3]),
        lambda case: replace(case, keys=case.keys.view(cp.uint16)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(attend, change):
    case = change(make([(4, 9)]))
    with pytest.raises(ShapeError):
        attend(case.q, case.keys, case.values, case.batch, scale=1.0, window=None, out=case.out())
