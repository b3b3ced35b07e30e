"""Sizes of the largest step, from which the size of every buffer follows."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.kv_formats.layers import PLAIN_LAYERS, KvLayers

MAX_SM_COUNT = 192
"""SMs of a card without a name; no card has more: a whole GB202 has 192, an RTX PRO 6000 188."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The largest step that a device must compute.

    Attributes:
        max_tokens: N, tokens of the step.
        max_sequences: B, sequences of the step.
        max_context: S, tokens of a sequence.
        block_tokens: Tb.
        sm_count: SMs of the GPU.
        kv: formats of the caches that it reads; layers that differ have block tables of their own.
        code_columns: inputs of the widest E4M3 matrix, whose activations are E4M3 too; 0: there is none.
        min_batch: smallest batch size of the persistent kernel that is used.
    """

    max_tokens: int
    max_sequences: int
    max_context: int
    block_tokens: int
    sm_count: int = MAX_SM_COUNT
    kv: KvLayers = PLAIN_LAYERS
    code_columns: int = 0
    min_batch: int = 1
