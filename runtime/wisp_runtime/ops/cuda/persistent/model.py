"""Sizes and switches that the persistent kernel is compiled with, and the reasons why a model cannot have it.

Pure; :mod:`.decode` and ``wisp-runtime kernels build --for`` read it.
"""

from __future__ import annotations

from wisp_plan.families.hugging_face import rotary_rows
from wisp_plan.spec.model import ModelSpec, dense_layer
from wisp_runtime.ops.cuda.device.manifest import Model
from wisp_runtime.ops.cuda.persistent.arguments import WIDTHS, require_dense
from wisp_runtime.ops.protocol.row_permutation import fused_permutation, interleaved_head_size

MAX_SEQUENCES = WIDTHS[-1]
"""Sequences of a step."""

_BLOCK_ROWS = 64
"""Rows that a warpgroup multiplies at once: ``kBlockM``."""

MAX_SM_COUNT = 132
"""SMs of the largest Hopper; each runs one thread block."""

_ONE_BLOCK_HIDDEN = 4096
"""Up to this hidden size a cluster has one 64-row block of the residual: ``kResidualMBlocks``."""

_WGMMA_WIDTH = 32
"""Sequences from which quantized GEMMs are wgmma's: ``QuantizedLoop``."""

_HEAD_SIZES = (64, 128)
_MAX_GROUP_HEADS = 8


def kernel_model(spec: ModelSpec) -> Model:
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


def equal_widths(weight_format: str) -> tuple[int, ...]:
    """Return the variants that add K in one order, so that a row has the same bits in each.

    Of bf16 all do. Quantized weights are multiplied by mma.sync up to 16 sequences, by wgmma beyond.
    """
    return WIDTHS if weight_format == "bf16" else tuple(width for width in WIDTHS if width >= _WGMMA_WIDTH)


def unsupported_reason(spec: ModelSpec, blocks: int) -> str | None:
    """Return why a model cannot have the kernel; None if it can.

    Args:
        blocks: thread blocks that the GPU runs at once.
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
        row_blocks = 1 if name == "hidden_size" and size <= _ONE_BLOCK_HIDDEN else 2
        max_rows = blocks // 2 * row_blocks * _BLOCK_ROWS
        if size > max_rows:
            return f"{name} has {size} rows, over the {max_rows} that {blocks} thread blocks hold"
    if attention.head_size not in _HEAD_SIZES:
        return f"heads of {attention.head_size} channels, not 64 or 128"
    if attention.rotary_size != attention.head_size:
        return f"only {attention.rotary_size} of {attention.head_size} channels of a head rotate"
    if attention.heads // attention.kv_heads > _MAX_GROUP_HEADS:
        return f"{attention.heads // attention.kv_heads} query heads share a KV head, over {_MAX_GROUP_HEADS}"
    return None
