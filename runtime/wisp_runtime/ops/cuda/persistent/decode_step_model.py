"""Which models the decode step's template can be compiled for, and with which sizes.

Pure: what :mod:`.decode_step` needs of a spec, and ``wisp-runtime kernels build --for`` too.
"""

from __future__ import annotations

from wisp_plan.families.hugging_face import rotary_rows
from wisp_plan.spec.model import ModelSpec, dense_layer
from wisp_runtime.ops.cuda.device.manifest import Model
from wisp_runtime.ops.cuda.persistent.decode_step_arguments import WIDTHS, require_dense
from wisp_runtime.ops.protocol.row_permutation import fused_permutation, interleaved_head_size

MOST_SEQUENCES = WIDTHS[-1]
"""Of a step."""

SLICE_ROWS, UNIT_SLICES = 16, 4
"""Rows of a slice, slices that a worker multiplies at once: ``kSliceRows``, ``kUnitSlices``."""

MOST_WORKERS = 132
"""Thread blocks that the largest Hopper runs at once, one a multiprocessor."""

_ONE_UNIT_ROWS = 4096
"""Up to this hidden size a cluster has one unit of the residual stream's rows: ``OutputProduct``."""

_HEAD_SIZES = (64, 128)
_MOST_HEADS_A_GROUP = 8


def step_model(spec: ModelSpec) -> Model:
    """Return the sizes and switches of ``spec`` that the template is compiled with."""
    attention, ffn, _ = require_dense(spec)
    permutation = fused_permutation(rotary_rows(attention))
    return {
        "hidden": spec.hidden,
        "mlp": ffn.inner,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_size": attention.head_size,
        "rows_by_heads": int(interleaved_head_size(permutation) > 0),
        "qk_norm": int(attention.has_qk_norm),
        "qkv_bias": int(attention.has_qkv_bias),
        "output_bias": int(attention.has_output_bias),
        "mlp_bias": int(ffn.has_bias),
    }


def why_not(spec: ModelSpec, workers: int) -> str | None:
    """Say why a model cannot have a decode step in one launch; None if it can.

    Args:
        workers: thread blocks that the GPU runs at once.
    """
    layer = dense_layer(spec)
    if layer is None:
        return "its layers differ, or are no attention and gated MLP"
    attention = layer.attention
    rows = {
        "hidden_size": spec.hidden,
        "Q, K and V": attention.query_size + 2 * attention.kv_size,
    }
    for name, size in rows.items():
        units = 1 if name == "hidden_size" and size <= _ONE_UNIT_ROWS else 2
        most = workers // 2 * units * UNIT_SLICES * SLICE_ROWS
        if size > most:
            return f"{name} has {size} rows, over the {most} that {workers} thread blocks hold"
    if attention.head_size not in _HEAD_SIZES:
        return f"heads of {attention.head_size} channels, not 64 or 128"
    if attention.rotary_size != attention.head_size:
        return f"only {attention.rotary_size} of {attention.head_size} channels of a head rotate"
    if attention.heads // attention.kv_heads > _MOST_HEADS_A_GROUP:
        return (
            f"{attention.heads // attention.kv_heads} query heads share a KV head, over {_MOST_HEADS_A_GROUP}"
        )
    return None
