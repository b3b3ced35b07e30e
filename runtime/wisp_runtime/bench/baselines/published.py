"""What other programs gave on the same GPU, for the ``peer`` of a row.

Source: ``tests/bench/peer/README.md``, which says how they were run. A row gets a peer only where GPU, shape,
format, batch and context are those that were measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wisp_runtime.bench.record import Row

VLLM = "vllm-0.26.0"


class Peer(NamedTuple):
    """One number of another program.

    Attributes:
        metric, shape, weights, batch, context, cached: as in :class:`.record.Row`.
        value: in the metric's unit.
        name: of the program.
        gpu: a part of the driver's name.
    """

    metric: str
    shape: str
    weights: str
    batch: int
    context: int
    value: float
    cached: int = 0
    name: str = VLLM
    gpu: str = "H200"


_8B, _BF16 = "llama-3-8b", "bf16"
_DECODE, _FIRST = "decode_step_ms", "first_token_ms"
_DECODE_512 = {1: 4.857, 4: 4.952, 8: 5.088, 16: 5.308, 32: 5.851, 64: 6.698, 128: 8.749, 256: 13.967}
_DECODE_FP8 = {1: 3.476, 8: 3.640, 32: 4.868, 64: 5.228}
_FIRST_BF16 = {128: 9.27, 512: 15.10, 2048: 50.43, 7900: 207.7}
_FIRST_FP8 = {128: 7.97, 512: 11.75, 2048: 32.12, 7900: 140.4}
_PREFILL = {(1, 8192): 38092, (8, 8192): 38372, (16, 2048): 42526, (64, 512): 43492}

PEERS = (
    *(Peer(_DECODE, _8B, _BF16, batch, 512, value) for batch, value in _DECODE_512.items()),
    *(Peer(_DECODE, _8B, "fp8", batch, 512, value) for batch, value in _DECODE_FP8.items()),
    Peer(_DECODE, _8B, _BF16, 1, 7900, 5.116),
    Peer(_DECODE, _8B, _BF16, 16, 7900, 8.750),
    Peer(_DECODE, "llama-3.2-3b", _BF16, 1, 512, 2.711),
    Peer(_DECODE, "smollm2-135m", _BF16, 1, 512, 1.23),
    Peer(_DECODE, "smollm2-135m", _BF16, 32, 512, 1.50),
    *(Peer(_FIRST, _8B, _BF16, 1, prompt, value) for prompt, value in _FIRST_BF16.items()),
    *(Peer(_FIRST, _8B, "fp8", 1, prompt, value) for prompt, value in _FIRST_FP8.items()),
    Peer(_FIRST, _8B, _BF16, 1, 7916, 11.958, cached=7888),
    *(
        Peer("prefill_tokens_per_s", _8B, _BF16, batch, prompt, value)
        for (batch, prompt), value in _PREFILL.items()
    ),
    Peer("start_to_first_token_s", _8B, _BF16, 1, 0, 25.0),
)


def with_peer(row: Row, gpu: str | None) -> Row:
    """Return ``row`` with the peer that was measured under its conditions, if there is one."""
    wanted = (row.metric, row.shape, row.weights, row.batch, row.context, row.more.get("cached", 0))
    for peer in PEERS:
        held = (peer.metric, peer.shape, peer.weights, peer.batch, peer.context, peer.cached)
        if gpu and peer.gpu in gpu and held == wanted:
            return replace(row, peer=peer.name, peer_value=peer.value)
    return row
