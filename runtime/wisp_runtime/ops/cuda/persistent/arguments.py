"""Arguments of ``persistent_decode.cu``, byte for byte, and the constants that both sides share.

The CUDA side is ``kernels/hopper/persistent/model.cuh``.
"""

from __future__ import annotations

import ctypes
import math
import struct

from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.spec.model import EqualLayer, ModelSpec, equal_layer
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.ops.protocol.attention import KvEncoding

WIDTHS, MAX_MARKS = BATCH_SIZES, 2048
THREADS, SHARED_BYTES, CLUSTER = 384, 232448, 2

WAIT_REASONS = {
    1: "for weights or cached keys that never came",
    2: "for a pipeline stage that was never released",
    3: "for activations that never came",
    4: "for a stage of activations that was never released",
    5: "for partial sums of its cluster",
    6: "at the grid's barrier: a block never arrived there",
    7: "for its own block to pass the grid's barrier",
    8: "for the scales of a norm",
    9: "for the step's plan of attention",
    10: "for the Q, K and V of its own layer",
    11: "for the router's logits of its own layer",
    12: "for the list of the layer's experts",
}
"""``WaitReason`` of ``hang_detector.cuh``."""

_POINTERS = (
    *("layers", "embeddings", "head", "final_norm", "pre_rope_qkv", "normed", "attended", "gated"),
    *("square_sums", "partials", "partial_stats", "splits_done", "logits", "tokens", "sampled", "positions"),
    *("contexts", "tables", "slots"),
    *("cosines", "sines", "keys", "values", "counters", "hang_report", "trace"),
    *("router_logits", "expert_counts"),
)
LAYER_WEIGHTS = (
    "qkv.weight",
    "output.weight",
    "gate_up.weight",
    "down.weight",
    "qkv.bias",
    "output.bias",
    "gate_up.bias",
    "down.bias",
    "input_norm.weight",
    "mlp_norm.weight",
    "q_norm.weight",
    "k_norm.weight",
)
"""Weights of a layer in the order of ``LayerWeights`` of ``model.cuh``; null where there is none. Behind
them come the scales of its cache (:func:`scales_word`), and its router."""

ROUTER = "router.weight"
_OF_EXPERTS = {"gate_up.weight": "experts.gate_up.weight", "down.weight": "experts.down.weight"}

_COUNTS = (
    *("layer_count", "vocab", "sequences", "sampled_rows", "table_width", "kv_blocks", "block_tokens"),
    *("known_positions", "window", "parallel_splits"),
)


_SEES_ALL = 1 << 30


class Arguments(ctypes.Structure):
    """``Args`` of ``model.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("timeout_clocks", "gate_up_stride", "down_stride")),
        *((name, ctypes.c_int32) for name in _COUNTS),
        *((name, ctypes.c_float) for name in ("scale", "eps", "routed_scale")),
    )


def scales_word(encoding: KvEncoding) -> int:
    """Return the scales of a layer's keys and values, float32, as one word of the table of layers."""
    return int.from_bytes(struct.pack("<2f", encoding.k_scale, encoding.v_scale), "little")


def layer_weights(spec: ModelSpec) -> tuple[str, ...]:
    """Return :data:`LAYER_WEIGHTS` by the model's names: of a mixture, the experts' ``[E, out, in]``."""
    is_mixture = isinstance(require_equal(spec).ffn, MoeSpec)
    return tuple(_OF_EXPERTS.get(name, name) if is_mixture else name for name in LAYER_WEIGHTS)


def require_equal(spec: ModelSpec) -> EqualLayer:
    """Return the layer of a model whose layers are equal; ``unsupported_reason`` refuses every other."""
    layer = equal_layer(spec)
    assert layer is not None, f"{spec.architecture} has layers that differ"
    return layer


def model_arguments(spec: ModelSpec) -> dict[str, int | float]:
    """Return the arguments that depend on the model alone."""
    attention, ffn, norms = require_equal(spec)
    return {
        "window": attention.window or _SEES_ALL,
        "vocab": spec.vocab,
        "scale": attention.score_scale * math.log2(math.e),
        "eps": norms.eps,
        "routed_scale": ffn.router.scale if isinstance(ffn, MoeSpec) else 1.0,
    }
