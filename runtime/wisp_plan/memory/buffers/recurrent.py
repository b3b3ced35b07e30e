"""Buffers of recurrent mixers: projections, convolved channels, results, matrices of prompts' chunks."""

from __future__ import annotations

from collections.abc import Collection

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
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
    mixers, mambas, tokens = spec.mixers(DeltaNetSpec), spec.mixers(MambaSpec), step.max_tokens
    if not mixers and not mambas:
        return ()
    width = max([_width(mixer) for mixer in mixers] + [mamba.inner for mamba in mambas])
    convolved = [mixer.conv_size for mixer in mixers] + [mamba.conv_size for mamba in mambas]
    projected = [mixer.conv_size + _width(mixer) for mixer in mixers]
    projected += [mamba.projected_size for mamba in mambas]
    return (
        Buffer("projected", (tokens, max(projected)), "bfloat16"),
        Buffer("convolved", (tokens, max(convolved)), "bfloat16"),
        Buffer("recurrent", (tokens, width), "bfloat16"),
        Buffer("gated", (tokens, width), "bfloat16"),
        *(_delta_net(mixers, step) if mixers else ()),
    )


def _delta_net(mixers: Collection[DeltaNetSpec], step: StepSizes) -> tuple[Buffer, ...]:
    heads, sequences = max(mixer.value_heads for mixer in mixers), step.max_sequences
    return (
        Buffer("gates", (step.max_tokens, 2 * heads), "bfloat16"),
        decode_arrivals(sequences, max(mixer.key_heads for mixer in mixers)),
        *chunk_buffers(max_chunks(step.max_tokens, sequences), heads),
    )


def _width(mixer: DeltaNetSpec) -> int:
    """Return the channels of the value heads."""
    return mixer.value_heads * mixer.value_size


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
