"""Scales of a quantized KV cache where a checkpoint has none: powers of two, measured at start on one prompt.

E4M3 is a floating-point format, so a scale need only bring keys and values into its range, and 1 does so for
most layers. The prompt is the same in every process and no request is looked at, so cached prefixes and pods
agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.spec.attention import AttentionSpec
from wisp_runtime.batch import Array
from wisp_runtime.layers.cache import KvScales, allocate_blocks
from wisp_runtime.models.model import Model
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
from wisp_runtime.ops.protocol.ops import Ops

PROMPT_TOKENS = 64

_MIN_USUAL, _MAX_USUAL = 2.0**-3, 2.0**3
"""Standard deviations that a scale of 1 suits."""

_HEADROOM = 4
"""Multiple of the prompt's largest value that must be held, as other prompts have larger ones."""

_MEDIAN = 0.6745
"""Median magnitude of a Gaussian, in standard deviations; unlike a mean square no outlier moves it."""

_TOKEN_STEP = 7919
"""Prime distance of the prompt's tokens in the vocabulary."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales of a start.

    Attributes:
        scales: scales of a layer's keys and values, where they are not both 1.
        note: words for the start-up log; empty for formats without a scale a layer.
    """

    scales: KvScales
    note: str = ""


def calibrate(model: Model, ops: Ops, kv: KvLayers, stored: KvScales) -> Calibration:
    """Choose the scales of layers that ``stored`` lacks, and check those that it has.

    Args:
        model: model with its weights.
        ops: device that they lie on.
        kv: formats of the layers.
        stored: scales of the checkpoint.
    """
    if not kv.inner.has_layer_scale:
        return Calibration({})
    layers = len(model.spec.layers)
    scales, measured, saturated = dict(stored), list[float](), list[int]()
    for layer, rows in keys_and_values(model, ops).items():
        if kv.of_layer(layer, layers) is not kv.inner:
            continue
        if layer not in stored:
            chosen = tuple(scale_for(array, kv.inner) for array in rows)
            if chosen != (1.0, 1.0):
                scales[layer] = chosen[0], chosen[1]
                measured += (scale for scale in chosen if scale != 1)
        elif _saturates(rows, stored[layer], kv.inner):
            saturated.append(layer)
    return Calibration(scales, _note(kv, len(stored), measured, saturated))


def keys_and_values(model: Model, ops: Ops) -> dict[int, tuple[Array, Array]]:
    """Return each layer's keys and values of the prompt, ``[blocks, Hkv, Tb, Dh]`` float32 of the host.

    The cache that they are computed in is freed on return.
    """
    spec = model.spec
    tokens = np.arange(PROMPT_TOKENS) * _TOKEN_STEP % spec.vocab
    cache = allocate_blocks(spec, ops, blocks=blocks_of(PROMPT_TOKENS), block_tokens=BLOCK_TOKENS)
    host = sequence_batch(tokens.tolist(), 0, PROMPT_TOKENS, [PROMPT_TOKENS - 1])
    of_tokens = "tokens", "positions", "slots", "logit_rows"
    of_sequences = "query_starts", "context_lengths", "block_tables", "state_slots"
    names = *of_tokens, *of_sequences
    batch = replace(host, **{name: ops.from_host(getattr(host, name)) for name in names})
    model.forward(replace(batch, other_groups=(batch,) * len(cache.groups)), cache)
    rows = {}
    for layer, layer_spec in enumerate(spec.layers):
        if any(isinstance(mixer, AttentionSpec) for mixer in layer_spec.mixers):
            keys, values = (ops.to_host(array) for array in cache.of_layer(layer).arrays)
            rows[layer] = keys, values
    return rows


def scale_for(rows: Array, kv_format: KvFormat) -> float:
    """Return the power of two that brings ``rows`` into the format's range: 1 wherever that does."""
    magnitudes = _magnitudes(rows, kv_format)
    if not len(magnitudes):
        return 1.0
    usual, largest = float(np.median(magnitudes)) / _MEDIAN, float(magnitudes.max())
    scale = 1.0 if _MIN_USUAL <= usual <= _MAX_USUAL else 2.0 ** round(math.log2(usual))
    while largest * _HEADROOM > kv_format.largest * scale:
        scale *= 2
    return scale


def _saturates(rows: tuple[Array, Array], scales: tuple[float, float], kv_format: KvFormat) -> bool:
    """Return whether keys or values are larger than what is held with ``scales``."""
    largest = (_magnitudes(array, kv_format).max(initial=0) for array in rows)
    return any(value > kv_format.largest * scale for value, scale in zip(largest, scales, strict=True))


def _magnitudes(rows: Array, kv_format: KvFormat) -> Array:
    """Return the magnitudes of ``rows`` as they are stored, without zeros and what is no number."""
    if kv_format.is_rotated:
        from wisp_runtime.ops.reference.kv_cache.hadamard import rotate  # not at every start

        rows = rotate(rows)
    magnitudes = np.abs(rows)
    return magnitudes[(magnitudes > 0) & np.isfinite(magnitudes)]


def _note(kv: KvLayers, stored: int, measured: list[float], saturated: list[int]) -> str:
    origin = f"scales of {stored} layers from the checkpoint" if stored else "no scales in the checkpoint"
    others = "1.0"
    if measured:
        others = f"1.0, or {min(measured):g} to {max(measured):g} by a prompt of {PROMPT_TOKENS} tokens"
    note = f"KV cache {kv}: {origin}, {others} elsewhere" if stored else f"KV cache {kv}: {origin}, {others}"
    if saturated:
        layers = ", ".join(map(str, saturated[:8])) + (", …" if len(saturated) > 8 else "")
        note += f"; keys or values of layers {layers} are larger than their scales hold"
    return note
