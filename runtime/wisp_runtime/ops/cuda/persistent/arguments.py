"""Arguments of ``persistent_decode.cu``, byte for byte, and the constants that both sides share.

The CUDA side is ``kernels/hopper/persistent/model.cuh``.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence

import numpy as np

from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.memory.buffers.persistent import layer_words, optional_weights
from wisp_plan.spec.model import ModelSpec, RepeatedLayers, repeated_layers
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.attention import KvEncoding

WIDTHS, MAX_MARKS = BATCH_SIZES, 2048
THREADS, SHARED_BYTES, CLUSTER = 384, 232448, 2
WARPGROUPS = 2  # of a block, that compute: each arrives at the grid's barrier

AT_GRID_BARRIER = 1
WAIT_REASONS = {
    AT_GRID_BARRIER: "at the grid's barrier before {where}",
    2: "for activations to be taken, in {where}",
    3: "for its warps to end the step",
}
"""``WaitReason`` of ``hang_detector.cuh``; a report of the first has how many had arrived."""

_POINTERS = (
    *("layers", "embeddings", "head", "final_norm", "pre_rope_qkv", "projected"),
    *("normed", "attended", "gated"),
    *("square_sums", "partials", "partial_stats", "splits_done", "logits", "tokens", "sampled", "positions"),
    *("contexts", "tables", "slots"),
    *("cosines", "sines", "keys", "values", "state_slots", "states", "conv_inputs"),
    *("counters", "hang_report", "trace", "router_logits", "expert_counts"),
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
them come the scales of its cache (:func:`scales_word`), its router, the address of its
:data:`DELTA_WEIGHTS`, and its :func:`~wisp_plan.memory.buffers.persistent.optional_weights`."""

ROUTER = "router.weight"
_OF_EXPERTS = {
    f"{projection}.{part}": f"experts.{projection}.{part}"
    for projection in ("gate_up", "down")
    for part in ("weight", "bias")
}

DELTA_WEIGHTS = ("gates.weight", "conv.weight", "decay", "step_bias", "gated_norm.weight")
"""Weights of a Gated DeltaNet in the order of ``DeltaWeights``; its projections are where Q, K, V are."""

DELTA_DTYPES = ("bfloat16", "bfloat16", "float32", "float32", "float32")
"""Their dtypes, whatever the format of the projections."""

_COUNTS = (
    *("layer_count", "vocab", "sequences", "sampled_rows", "table_width", "kv_blocks", "block_tokens"),
    *("known_positions", "state_layers", "window", "parallel_splits"),
)


_SEES_ALL = 1 << 30
"""Window of a layer without one: ``kSeesAll``."""


class Arguments(ctypes.Structure):
    """``Args`` of ``model.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("gate_up_stride", "down_stride")),
        *((name, ctypes.c_int32) for name in _COUNTS),
        *((name, ctypes.c_uint32) for name in ("timeout_clocks", "cluster_reciprocal")),
        *((name, ctypes.c_float) for name in ("scale", "eps", "routed_scale")),
    )


class WindowedArguments(Arguments):
    """``Args`` where layers see windows but for the last of each few, whose cache the last fields name."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("full_tables", "full_slots", "full_keys", "full_values")),
        *((name, ctypes.c_int32) for name in ("full_table_width", "full_kv_blocks")),
    )


def arguments_type(spec: ModelSpec) -> type[Arguments]:
    """Return the type of ``Args`` of a model's kernel."""
    return WindowedArguments if require_repeated(spec).window_period > 1 else Arguments


def scales_word(encoding: KvEncoding) -> int:
    """Return the scales of a layer's keys and values, float32, as one word of the table of layers."""
    return int.from_bytes(struct.pack("<2f", encoding.k_scale, encoding.v_scale), "little")


def layer_weights(layers: RepeatedLayers, index: int) -> tuple[str, ...]:
    """Return :data:`LAYER_WEIGHTS` by a layer's names: of a mixture, the experts' ``[E, out, in]``."""
    names = {"qkv.weight": "qkvz.weight"} if layers.is_delta_net(index) else {}
    names |= _OF_EXPERTS if isinstance(layers.ffn, MoeSpec) else {}
    return tuple(f"layers.{index}.{names.get(name, name)}" for name in LAYER_WEIGHTS)


def matrices(spec: ModelSpec) -> tuple[str, ...]:
    """Return the weights that the kernel is compiled for formats of: matrices of all layers, and the head."""
    layers = require_repeated(spec)
    names = [name for index in range(len(spec.layers)) for name in layer_weights(layers, index)]
    return *(name for name in names if name.endswith(".weight")), "head.weight"


def delta_weights(layers: RepeatedLayers, index: int) -> tuple[str, ...]:
    """Return the names of a layer's :data:`DELTA_WEIGHTS`; none where it has attention."""
    return tuple(f"layers.{index}.{name}" for name in DELTA_WEIGHTS if layers.is_delta_net(index))


def layer_table(
    spec: ModelSpec, pointer: Callable[[str], int], encodings: Sequence[KvEncoding], address: int
) -> Array:
    """Return ``LayerWeights`` of all layers, and behind them ``DeltaWeights``: words, uint64.

    Args:
        pointer: address of a weight by its name; 0: there is none.
        encodings: encodings of the layers that attend.
        address: place of the table on the device.
    """
    layers, count, left = require_repeated(spec), len(spec.layers), iter(encodings)
    optional, words = optional_weights(spec), layer_words(spec)
    rows, deltas = list[int](), list[int]()
    for index in range(count):
        more = [pointer(name) for name in delta_weights(layers, index)]
        rows += [pointer(name) for name in layer_weights(layers, index)]
        rows += [0 if more else scales_word(next(left)), pointer(f"layers.{index}.{ROUTER}")]
        rows.append(address + 8 * (count * words + len(deltas)) if more else 0)
        rows += [pointer(f"layers.{index}.{name}") for name in optional]
        deltas += more
    return np.array(rows + deltas, np.uint64)


def require_repeated(spec: ModelSpec) -> RepeatedLayers:
    """Return the layers of a model; ``unsupported_reason`` refuses one that has none."""
    layers = repeated_layers(spec)
    assert layers is not None, f"{spec.architecture} has layers that differ"
    return layers


def cluster_reciprocal(blocks: int) -> int:
    """Return the argument by which a kernel of so many blocks, four or more, divides by its clusters."""
    clusters = blocks // CLUSTER
    assert clusters > 1, "2^32 does not fit"
    return 2**32 // clusters + 1


def model_arguments(spec: ModelSpec) -> dict[str, int | float]:
    """Return the arguments that depend on the model alone."""
    layers = require_repeated(spec)
    attention, ffn, norms, *_ = layers
    return {
        "state_layers": sum(map(layers.is_delta_net, range(len(spec.layers)))),
        "window": attention.window or _SEES_ALL,
        "vocab": spec.vocab,
        "scale": attention.score_scale * math.log2(math.e),
        "eps": norms.eps,
        "routed_scale": ffn.router.scale if isinstance(ffn, MoeSpec) else 1.0,
    }
