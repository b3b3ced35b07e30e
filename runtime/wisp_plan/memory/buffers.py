"""The scratch memory of a step, at the largest step that the options allow.

On a GPU each part is a line or a function here that counts what the runtime's own part allocates.
``tests/runtime/ops/cuda/test_workspace_twins.py`` compares the constants with theirs;
``tests/gpu/engine/test_preflight.py`` compares the ledger's
total with what a GPU gave, within 2 %, and prints the parts. On the CPU it is an estimate.
"""

from __future__ import annotations

from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.layout import padded

BF16_BYTES, FLOAT32_BYTES = 2, 4

ALIGNMENT_BYTES = 256
"""Every buffer is a multiple of it."""

MOST_ALTERNATIVES = 20
"""Alternatives to a token that a client may ask for, as OpenAI's may; a step that reports any reports all."""

# Mirrors of constants in ``wisp_runtime.ops.cuda``; ``test_workspace_twins.py`` compares them.
PRODUCT_ROWS = 128
PRODUCT_TOKENS = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
DECODE_PART_ROWS = 16384
STEP_WIDTHS, STEP_PARTS, STEP_BLOCKS = (8, 16, 32, 64), 16, 160
STEP_COUNTERS, STEP_POINTERS = 3, 12
PREFILL_ROWS = 128
PREFILL_HEAD_SIZES = (64, 128, 192, 256)
PREFILL_ITEM_BYTES = 32
SAMPLING_BINS, SAMPLING_CANDIDATES = 3584, 4096
SAMPLING_ENTRIES_A_ROW = 4096
SAMPLING_HEADER_BYTES, SAMPLING_ROW_BYTES = 64, 64

CPU_SCORES = 8 << 20
"""Attention scores that the CPU backend computes at once; the mask and temporaries take as much again."""


def gpu_buffers(spec: ModelSpec, step: StepSizes) -> dict[str, int]:
    """Return the bytes of what a step uses on a GPU, by what it is for.

    Beside each is who allocates it: classes of ``wisp_runtime.ops.cuda``, unless a path says otherwise.
    """
    tokens, width = step.max_tokens, widest(spec, "query_size")
    keys = widest(spec, "kv_size")
    return {
        "residual": _sum(tokens * spec.hidden * FLOAT32_BYTES),  # Embedding.__call__
        "normed": _sum(tokens * spec.hidden * BF16_BYTES),  # Norms.rmsnorm, Norms.add_rmsnorm
        "qkv": _sum(tokens * (width + 2 * keys) * BF16_BYTES),  # Linear.__call__
        "attention": _sum(tokens * width * BF16_BYTES),  # CudaOps.paged_attention
        "rows": _sum(step.max_sequences * max(spec.hidden, width) * BF16_BYTES),  # CudaOps.reserve
        "output": _sum(tokens * spec.hidden * BF16_BYTES),  # Linear.__call__
        "swiglu": _sum(tokens * widest_ffn(spec) * BF16_BYTES),  # Linear.swiglu
        "logits": _sum(step.max_sequences * spec.vocab * FLOAT32_BYTES),  # Linear.logits
        "linear": products(step),  # Linear.ensure
        "decode_attention": decode_attention(spec, step),  # DecodeAttention.reserve
        "decode_step": decode_step(spec, step),  # DecodeStep
        "prefill_attention": prefill_attention(spec, step),  # PrefillAttention.reserve
        "sampling": sampling(spec, step),  # Sampler.reserve
        "inputs": inputs(step),  # engine/execution/staging.py: Staging
        "rotation": rotation(spec),  # layers/rotary.py: rotation
    }


def widest(spec: ModelSpec, size: str) -> int:
    """Return the largest of a size of :class:`AttentionSpec` among the layers."""
    return max((getattr(attention, size) for attention in spec.mixers(AttentionSpec)), default=0)


def widest_ffn(spec: ModelSpec) -> int:
    """Return the largest inner size among the layers' gated MLPs."""
    return max((ffn.inner for ffn in spec.ffns(DenseSpec)), default=0)


def products(step: StepSizes) -> int:
    """Two float32 tiles for each SM, as wide as the widest tile of a product, and their counters.

    An SM has one block of a product, whose range of steps begins at most one cut tile and goes on with one.
    """
    wanted = (width for width in PRODUCT_TOKENS if width >= step.max_tokens)
    tile = PRODUCT_ROWS * next(wanted, PRODUCT_TOKENS[-1])
    blocks = 2 * step.sm_count
    return _sum(blocks * tile * FLOAT32_BYTES, blocks * 4)


def decode_attention(spec: ModelSpec, step: StepSizes) -> int:
    """Partial results of divided sequences, each with its maximum and sum; a counter for each head."""
    rows = DECODE_PART_ROWS
    counters = step.max_sequences * widest(spec, "heads") * 4
    return _sum(rows * widest(spec, "head_size") * FLOAT32_BYTES, rows * 2 * FLOAT32_BYTES, counters)


def decode_step(spec: ModelSpec, step: StepSizes) -> int:
    """What passes between the blocks of a step in one launch, and the addresses of the weights.

    Counted on every GPU, though only a Hopper runs such steps.
    """
    rows = next((width for width in STEP_WIDTHS if width >= step.max_sequences), STEP_WIDTHS[-1])
    width, keys = widest(spec, "query_size"), widest(spec, "kv_size")
    return _sum(
        2 * rows * (width + 2 * keys) * FLOAT32_BYTES,
        *(rows * columns * BF16_BYTES for columns in (spec.hidden, width, widest_ffn(spec))),
        rows * STEP_BLOCKS * FLOAT32_BYTES,
        STEP_PARTS * rows * width * FLOAT32_BYTES,
        STEP_PARTS * rows * widest(spec, "heads") * 2 * FLOAT32_BYTES,
        rows * widest(spec, "kv_heads") * 4,
        STEP_COUNTERS * 4,
        len(spec.layers) * STEP_POINTERS * 8,
    )


def prefill_attention(spec: ModelSpec, step: StepSizes) -> int:
    """The list of tiles of a step, and a partial result for each SM with its counter."""
    tokens, sequences = step.max_tokens, step.max_sequences
    tiles = 1
    for attention in spec.mixers(AttentionSpec):
        rows = tokens * (attention.heads // attention.kv_heads)
        of_layer = rows // PREFILL_ROWS + min(sequences, tokens)
        tiles = max(tiles, of_layer, step.sm_count // attention.kv_heads)
    widest_head = widest(spec, "head_size")
    size = next((size for size in PREFILL_HEAD_SIZES if size >= widest_head), widest_head)
    parts = step.sm_count * PREFILL_ROWS * (size + 2) * FLOAT32_BYTES
    return _sum(tiles * PREFILL_ITEM_BYTES, parts, step.sm_count * 4)


def sampling(spec: ModelSpec, step: StepSizes) -> int:
    """Adjusted logits, histograms and candidates of each row, penalties, masks, and what was chosen."""
    rows, vocab = step.max_sequences, spec.vocab
    tasks = 2 * rows  # a row's draw, and its log-probabilities
    return _sum(
        rows * vocab * FLOAT32_BYTES,
        tasks * SAMPLING_BINS * 8,
        tasks * SAMPLING_BINS * 4,
        tasks * SAMPLING_CANDIDATES * 8,
        max(tasks, 2 * step.sm_count) * 8,
        *(tasks * size for size in (8, 8, 4, 4)),  # best, totals, found, arrived
        *(rows * size for size in (4, 1, 4)),  # tokens, is_sound, logprobs
        *(rows * MOST_ALTERNATIVES * size for size in (4, 4)),
        rows * min(2 * vocab, SAMPLING_ENTRIES_A_ROW) * 8,
        rows * -(-vocab // 32) * 4,
    )


def inputs(step: StepSizes) -> int:
    """Token ids, positions and slots; of each sequence its block table and what decides its draw."""
    rows, table = step.max_sequences, -(-step.max_context // step.block_tokens)
    parameters = SAMPLING_HEADER_BYTES + rows * SAMPLING_ROW_BYTES
    arrays = step.max_tokens * (8 + 4 + 4) + rows * (8 + 4 + 4)
    arrays += 6 * 16  # what aligns the six arrays of engine/execution/packing.py, and the end of query_starts
    return _sum(parameters + arrays, rows * table * 4)


def rotation(spec: ModelSpec) -> int:
    """Cosines and sines of every position, ``[S, R / 2]`` float32 each."""
    return spec.max_context * widest(spec, "rotary_size") * FLOAT32_BYTES


def _sum(*sizes: int) -> int:
    return sum(padded(size, ALIGNMENT_BYTES) for size in sizes)


def cpu_bytes(spec: ModelSpec, step: StepSizes) -> int:
    """Count the arrays that live at the same time in the CPU backend's largest step."""
    queries, keys = widest(spec, "query_size"), widest(spec, "kv_size")
    # Of a token: the residual, its norm, and the wider of attention and MLP.
    width = 2 * spec.hidden + max(2 * queries + 2 * keys, 3 * widest_ffn(spec))
    activations = step.max_tokens * width * FLOAT32_BYTES
    # Logits, and a copy for sampling to sort; a token's bitmask is one bit of V.
    chosen = step.max_sequences * (2 * spec.vocab * FLOAT32_BYTES + spec.vocab // 8)
    tables = step.max_sequences * -(-step.max_context // step.block_tokens) * 4
    return activations + chosen + tables + rotation(spec) + _cpu_attention(spec, step)


def _cpu_attention(spec: ModelSpec, step: StepSizes) -> int:
    """Count float32 scores and one context's keys and values."""
    context = step.max_context
    queries = min(step.max_tokens, max(1, CPU_SCORES // (widest(spec, "heads") * context)))
    scores = queries * widest(spec, "heads") * context
    return 2 * scores * FLOAT32_BYTES + 2 * context * widest(spec, "kv_size") * FLOAT32_BYTES
