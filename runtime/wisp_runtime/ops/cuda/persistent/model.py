"""Sizes and switches that the persistent kernel is compiled with, and the reasons why a model cannot have it.

Pure; :mod:`.decode` and ``wisp-runtime kernels build --for`` read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from wisp_plan.families.hugging_face import rotary_rows
from wisp_plan.kv_formats.fp8 import FP8
from wisp_plan.kv_formats.plain import BF16
from wisp_plan.memory.batch_sizes import MIN_EQUAL_QUANTIZED
from wisp_plan.memory.buffers.persistent import MAX_MOE_SEQUENCES
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import NOT_REPEATED, ModelSpec, RepeatedLayers, repeated_layers
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.ops.cuda.device.manifest import Model
from wisp_runtime.ops.cuda.persistent.arguments import WIDTHS, require_repeated
from wisp_runtime.ops.cuda.persistent.row_limits import BLOCK_ROWS, TILE_ROWS, over_rows
from wisp_runtime.ops.protocol.weights.row_permutation import fused_permutation, interleaved_head_size

MAX_SEQUENCES = WIDTHS[-1]
"""Sequences of a step."""

KV_FORMATS = (BF16, FP8)
"""Formats of keys and values that it reads: ``kv_formats`` of ``layers.cuh``."""

_MAX_MOE_HIDDEN = 3072
"""Half of a mixture's input stays in shared memory, of 32 sequences 96 KB: the rest is the pipelines'."""

_MAX_EXPERTS, _MAX_CHOSEN = 512, 32
_MAX_K_BLOCK, _MIN_K_BLOCKS = 256, 8
"""Columns of the widest block of K, and blocks of a token's experts that give each warpgroup of a cluster
some of the down GEMM: one without waits for no activations, and overwrites sums of the phase before."""

NEVER_TIMED = (
    "the persistent decode kernel of such a model was never timed beside the general path, or is slower; "
    "on a Hopper --decode-path persistent takes it"
)
_FASTER_UP_TO_OF_HYBRIDS = 16

_HEAD_SIZES, _DELTA_SIZES = (64, 128, 256), (128, 128)
_MAX_GROUP_HEADS = 8


def kernel_model(spec: ModelSpec) -> Model:
    """Return the sizes and switches of ``spec`` that the template is compiled with."""
    layers = require_repeated(spec)
    attention, ffn = layers.attention, layers.ffn
    permutation = fused_permutation(rotary_rows(attention))
    sizes = {
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
    if isinstance(ffn, MoeSpec):
        sizes |= {
            "experts": ffn.router.experts,
            "chosen_experts": ffn.router.chosen,
            "normalized_experts": int(ffn.router.normalizes),
            "shared_expert": int(ffn.shared is not None),
        }
    return {**sizes, **_some_models(layers)}


def _some_models(layers: RepeatedLayers) -> Model:
    """Return the sizes and switches that few models have; other kernels are named without them."""
    attention, norms, period, delta_net = layers.attention, layers.norms, layers.period, layers.delta_net
    mixture = layers.ffn if isinstance(layers.ffn, MoeSpec) else None
    switches = {
        "sinks": int(attention.has_sinks),
        "window_period": layers.window_period if layers.window_period > 1 else 0,
        "router_bias": int(mixture is not None and mixture.router.has_bias),
        "clamped_swiglu": int(layers.ffn.activation == "clamped_swiglu"),
        "rotary_size": attention.rotary_size if attention.rotary_size != attention.head_size else 0,
        "output_gate": int(attention.has_output_gate),
        "zero_centred": int(norms.is_zero_centred),
        "attention_period": period if delta_net is not None else 0,
        "delta_key_heads": 0 if delta_net is None else delta_net.key_heads,
        "delta_value_heads": 0 if delta_net is None else delta_net.value_heads,
    }
    return {name: value for name, value in switches.items() if value}


def step_format(formats: Mapping[str, str]) -> str:
    """Return the formats that the template is compiled for, of matrices by their names.

    Of the layers, with the experts' (``bf16:mxfp4_fields``) if that is another, and the head's
    (``int4+fp8``) if that is not bf16. Several formats of one kind are named with commas: there is no
    kernel for them.
    """
    kinds: dict[str, set[str]] = {"layers": set(), "experts": set(), "head": set()}
    for name, held in formats.items():
        kind = "experts" if ".experts." in name else name.partition(".")[0]
        kinds[kind].add(held)
    layers, experts, head = (", ".join(sorted(kinds[kind])) for kind in ("layers", "experts", "head"))
    own = "" if experts in ("", layers) else f":{experts}"
    return layers + own + ("" if head in ("", "bf16") else f"+{head}")


def equal_widths(weight_format: str) -> tuple[int, ...]:
    """Return the variants that add K in one order, so that a row has the same bits in each.

    Of bf16 all do. Quantized weights are multiplied by mma.sync up to 16 sequences, by wgmma beyond
    (``QuantizedLoop``).
    """
    return (
        WIDTHS
        if weight_format == "bf16"
        else tuple(width for width in WIDTHS if width >= MIN_EQUAL_QUANTIZED)
    )


def variant_widths(weight_format: str, max_sequences: int, *, batch_invariant: bool) -> list[int]:
    """Return the variants that steps of up to ``max_sequences`` need, ascending."""
    widths = equal_widths(weight_format) if batch_invariant else WIDTHS
    return [width for width in widths if width < 2 * max_sequences or width == widths[0]]


def faster_up_to(weight_format: str, spec: ModelSpec) -> int:
    """Return the sequences of a step up to which the kernel is faster than the general path.

    0: never timed, or slower.

    One H200, sequences of 512 tokens, ms as served of the kernel and of the general path: records
    ``decode-persistent-*`` and ``decode-general-*`` of tests/bench/records, and docs/decisions/0007 and 0020.
    Of mixtures Qwen3-30B-A3B is faster up to 32 sequences; Qwen3.6-35B-A3B up to 8 in fp8_block, gpt-oss up
    to 2 in MXFP4; of hybrids Qwen3.8-27B in fp8_block and Qwen3.5-9B in bf16 up to 16.

    An H200, Llama-3-8B, 64 sequences of 608 tokens, ms as served, the kernel and the general path: bf16 6.15
    and 5.99, fp8 5.16 and 5.77, fp8_block 5.99 and 5.67, int4 5.79 and 5.13, mxfp4 5.62 and 5.15, nvfp4 5.74
    and 5.26.
    """
    if mixtures := spec.ffns(MoeSpec):
        return _faster_mixture_up_to(weight_format, spec, mixtures[0])
    if spec.mixers(DeltaNetSpec):
        return _FASTER_UP_TO_OF_HYBRIDS
    return MAX_SEQUENCES if weight_format == "fp8" else 32


def _faster_mixture_up_to(weight_format: str, spec: ModelSpec, mixture: MoeSpec) -> int:
    if spec.mixers(DeltaNetSpec):
        was_timed = weight_format == "fp8_block" and mixture.router.experts == 256
        return 8 if was_timed else 0
    if any(mixer.has_sinks for mixer in spec.mixers(AttentionSpec)):
        return 2 if weight_format == "bf16:mxfp4_fields" else 0
    return MAX_MOE_SEQUENCES if mixture.shared is None else 0


def parallel_splits(sequences: int, kv_heads: int, blocks: int) -> int:
    """Return how many splits a sequence's attention may have, so that each thread block has one at most.

    Two are not worth combining. An H200, Llama-3-8B, contexts of 608 tokens, ms as served, without and with:
    one sequence in fp8 2.368 and 2.278, in int4 1.927 and 1.859; eight in two splits each 2.401 and 2.406,
    1.951 and 1.980.
    """
    splits = blocks // (sequences * kv_heads)
    return splits if splits > 2 else 1


def max_sequences(spec: ModelSpec) -> int:
    """Return the sequences that a step of ``spec`` may have."""
    return MAX_MOE_SEQUENCES if spec.ffns(MoeSpec) else MAX_SEQUENCES


def unsupported_reason(spec: ModelSpec, blocks: int, *, batch_invariant: bool = False) -> str | None:
    """Return why a model cannot have the kernel; None if it can.

    Args:
        blocks: thread blocks that the GPU runs at once.
        batch_invariant: whether a row's bits must be the same in steps of all sizes.
    """
    layers = repeated_layers(spec)
    if layers is None:
        return NOT_REPEATED
    if (spec.embedding_scale, spec.logits_scale) != (1, 1):
        return "it has scaled embeddings or logits"
    if other := _other_maths(layers):
        return f"it has {other}"
    if isinstance(layers.ffn, MoeSpec) and (
        lacking := _unsupported_experts(layers.ffn, spec.hidden, batch_invariant=batch_invariant)
    ):
        return lacking
    if too_large := over_rows(spec, layers, blocks):
        return too_large
    if layers.delta_net is not None:
        if batch_invariant:
            return "steps of Gated DeltaNet have not been compared bit by bit between sizes"
        if reason := _unsupported_delta_net(layers.delta_net, layers.attention):
            return reason
    return _unsupported_heads(layers.attention)


def _unsupported_heads(attention: AttentionSpec) -> str | None:
    """Return what the kernel does not compute of attention's heads; None if it computes all."""
    if attention.head_size not in _HEAD_SIZES:
        return f"heads of {attention.head_size} channels, not 64, 128 or 256"
    if attention.rotary_size % 64 or not attention.rotary_size:
        rotated = f"{attention.rotary_size} of {attention.head_size} channels of a head"
        return f"{rotated} rotate, no multiple of 64"
    if attention.heads // attention.kv_heads > _MAX_GROUP_HEADS:
        return f"{attention.heads // attention.kv_heads} query heads share a KV head, over {_MAX_GROUP_HEADS}"
    return None


def _unsupported_experts(ffn: MoeSpec, hidden: int, *, batch_invariant: bool) -> str | None:
    """Return what the kernel does not compute of a mixture; None if it computes all."""
    if batch_invariant:
        return "it adds experts' results in an order that depends on the batch"
    router = ffn.router
    lacking = {
        "a shared expert of another size, or without a gate": not _is_like_the_others(ffn),
        "a router without softmax": router.scores != "softmax",
        "a router with a correction of its scores": router.has_correction_bias,
        "experts in groups": router.groups > 1,
        f"{router.experts} experts, over {_MAX_EXPERTS}": router.experts > _MAX_EXPERTS,
        f"{router.chosen} experts a token, over {_MAX_CHOSEN}": router.chosen > _MAX_CHOSEN,
        f"experts of {ffn.inner} channels, no multiple of {BLOCK_ROWS // 2}": ffn.inner % (BLOCK_ROWS // 2),
        "experts too small for all warps": router.chosen * -(-ffn.inner // _MAX_K_BLOCK) < _MIN_K_BLOCKS,
    }
    if found := next((name for name, is_there in lacking.items() if is_there), None):
        return f"it has {found}"
    if hidden > _MAX_MOE_HIDDEN or hidden % TILE_ROWS:
        return f"hidden_size {hidden} of a mixture is over {_MAX_MOE_HIDDEN}, or no multiple of {TILE_ROWS}"
    return None


def _is_like_the_others(ffn: MoeSpec) -> bool:
    """Return whether a shared expert computes what the others do, times a gate's sigmoid, or is not there."""
    return ffn.shared is None or (ffn.has_shared_gate and ffn.shared == DenseSpec(ffn.inner))


def _unsupported_delta_net(delta_net: DeltaNetSpec, attention: AttentionSpec) -> str | None:
    """Return what the kernel does not compute of a Gated DeltaNet; None if it computes all."""
    if (delta_net.key_size, delta_net.value_size, delta_net.kernel) != (*_DELTA_SIZES, 4):
        sizes = f"{delta_net.key_size} and {delta_net.value_size}, convolutions of {delta_net.kernel}"
        return f"heads of Gated DeltaNet with {sizes} are not 128, 128 and 4"
    if delta_net.state_dtype != "float32":
        return f"states are {delta_net.state_dtype}, not float32"
    if delta_net.value_heads * delta_net.value_size != attention.query_size:
        return "Gated DeltaNet has another width than attention's queries"
    return None


def _other_maths(layers: RepeatedLayers) -> str | None:
    """Return what the kernel does not compute of a layer; None if it computes all."""
    ffn = layers.ffn
    is_scaled = isinstance(ffn, DenseSpec) and (ffn.gate_scale, ffn.scale) != (1, 1)
    activations = ("silu", "clamped_swiglu") if isinstance(ffn, MoeSpec) else ("silu",)
    lacking = {
        "norms behind a block": layers.norms.follow,
        "activations other than gated SiLU": ffn.activation not in activations,
        "a scaled MLP": is_scaled,
    }
    return next((name for name, is_there in lacking.items() if is_there), None)
