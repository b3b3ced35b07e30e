"""Buffers of recurrent mixers: projections, convolved channels, results, matrices of prompts' chunks."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.model import ModelSpec

CHUNK_TOKENS = 64
"""Tokens of a chunk of a prompt."""

MATRIX_ELEMENTS = 4 * CHUNK_TOKENS * CHUNK_TOKENS
"""bf16 of ``ChunkMatrices``."""

FACTOR_ELEMENTS = 3 * CHUNK_TOKENS + 4
"""float32 of ``ChunkFactors``."""

_MAX_SHORT_CHUNKS = 32
"""Chunks that are not full, that are computed at once."""


def recurrent(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the buffers of a model's recurrent mixers; none where it has none."""
    mixers, tokens = spec.mixers(DeltaNetSpec), step.max_tokens
    if not mixers:
        return ()
    heads, width = (max(sizes) for sizes in zip(*map(_sizes, mixers), strict=True))
    channels = max(mixer.conv_size for mixer in mixers)
    projected = max(mixer.conv_size + _sizes(mixer)[1] for mixer in mixers)
    return (
        Buffer("projected", (tokens, projected), "bfloat16"),
        Buffer("gates", (tokens, 2 * heads), "bfloat16"),
        Buffer("convolved", (tokens, channels), "bfloat16"),
        Buffer("recurrent", (tokens, width), "bfloat16"),
        Buffer("gated", (tokens, width), "bfloat16"),
        decode_arrivals(step.max_sequences, max(mixer.key_heads for mixer in mixers)),
        *chunk_buffers(max_chunks(tokens, step.max_sequences), heads),
    )


def _sizes(mixer: DeltaNetSpec) -> tuple[int, int]:
    """Return the value heads, and their channels."""
    return mixer.value_heads, mixer.value_heads * mixer.value_size


def decode_arrivals(sequences: int, key_heads: int) -> Buffer:
    """Return arrival counters of the value heads that share a key head: of its Q, and of its K."""
    return Buffer("delta_net.arrivals", (sequences, key_heads, 2), "uint32", is_zeroed=True)


def max_chunks(tokens: int, sequences: int) -> int:
    """Return the chunks that one launch takes, at most; one sequence never has more."""
    return tokens // CHUNK_TOKENS + max(1, min(sequences, tokens, _MAX_SHORT_CHUNKS))


def chunk_buffers(chunks: int, heads: int) -> tuple[Buffer, Buffer]:
    """Return ``ChunkMatrices`` and ``ChunkFactors`` of each chunk and value head."""
    return (
        Buffer("delta_net.matrices", (chunks, heads, MATRIX_ELEMENTS), "bfloat16"),
        Buffer("delta_net.factors", (chunks, heads, FACTOR_ELEMENTS), "float32"),
    )
