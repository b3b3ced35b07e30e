"""Buffers of mixtures of experts: logits, pairs of tokens and experts in their order, and results."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

MAX_SPLIT_TOKENS = 64
"""Tokens that are routed by one kernel: the sums of a logit's ranges are stored apart, and added up in it."""

MAX_JOINED_TOKENS = 32
"""Tokens up to which a shared expert is multiplied beside the others: measured faster at 1, 8 and 32."""

FEW_TOKENS = 8
"""Tokens of a block of that launch."""

RANGE_COLUMNS = 256
"""Columns of x in such a range: ``router_range_columns`` of the kernels."""

MIN_TILE_TOKENS = 8
"""Tokens of the narrowest tile of an expert."""


def moe(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the buffers of every mixture of a model, which its layers share."""
    mixtures = spec.ffns(MoeSpec)
    if not mixtures:
        return ()
    largest: dict[str, Buffer] = {}
    for mixture in mixtures:
        for buffer in _mixture(mixture, spec.hidden, step.max_tokens):
            known = largest.get(buffer.name)
            if known is None or known.size_bytes < buffer.size_bytes:
                largest[buffer.name] = buffer
    layers = sum(isinstance(layer.ffn, MoeSpec) for layer in spec.layers)
    experts = max(mixture.router.experts for mixture in mixtures)
    return (*largest.values(), route_arrivals(), expert_counts(layers, experts))


def expert_counts(layers: int, experts: int) -> Buffer:
    """Return the counters of the experts' load: tokens, and calls, of each layer and expert."""
    return Buffer("moe.counts", (layers, 2, experts), "int64", is_zeroed=True)


def route_arrivals() -> Buffer:
    """Return the counters of blocks that have routed: of all tiles of few tokens, and of each."""
    return Buffer("moe.arrivals", (1 + MAX_SPLIT_TOKENS // FEW_TOKENS,), "uint32", is_zeroed=True)


def max_tiles(pairs: int, experts: int, width: int) -> int:
    """Return how many tiles of ``width`` tokens of one expert there are at most, however pairs are spread."""
    return min(pairs, min(pairs, experts) + pairs // width)


def logit_stride(experts: int, *, has_gate: bool) -> int:
    """Return the distance of two tokens' logits: a multiple of 16 bytes."""
    return -(-(experts + has_gate) // 4) * 4


def _mixture(mixture: MoeSpec, hidden: int, tokens: int) -> Iterator[Buffer]:
    experts, chosen = mixture.router.experts, mixture.router.chosen
    pairs, ranges = tokens * chosen, -(-hidden // RANGE_COLUMNS)
    tiles = max_tiles(pairs, experts, MIN_TILE_TOKENS)
    if mixture.shared is not None:  # one expert more, of few tokens
        few = min(tokens, MAX_JOINED_TOKENS)
        own = max_tiles(few * chosen, experts, MIN_TILE_TOKENS) + -(-few // MIN_TILE_TOKENS)
        pairs, tiles = max(pairs, few * (chosen + 1)), max(tiles, own)
    logits = max(min(tokens, MAX_SPLIT_TOKENS) * ranges, tokens)
    stride = logit_stride(experts, has_gate=mixture.has_shared_gate)
    yield Buffer("moe.logits", (logits * stride,), "float32")
    if mixture.has_shared_gate:
        yield Buffer("moe.gates", (tokens,), "float32")
    yield Buffer("moe.experts", (tokens, chosen), "int32")
    yield Buffer("moe.weights", (tokens, chosen), "float32")
    yield Buffer("moe.positions", (tokens, chosen), "int32")
    yield Buffer("moe.rows", (pairs,), "int32")
    yield Buffer("moe.tiles", (tiles, 4), "int32")
    yield Buffer("moe.tile_count", (1,), "int32")
    yield Buffer("moe.progress", (tiles,), "uint32", is_zeroed=True)
    yield Buffer("moe.inner", (pairs, mixture.inner), "bfloat16")
    yield Buffer("moe.outputs", (pairs, hidden), "bfloat16")
    yield Buffer("mixture", (tokens, hidden), "bfloat16")
    if mixture.latent is not None:
        yield Buffer("from_latent", (tokens, hidden), "bfloat16")
