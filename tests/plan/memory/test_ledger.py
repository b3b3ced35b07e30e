"""The byte ledger, row by row, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spec_changes import attention_of, changed

from wisp_plan.families.hugging_face import decoder_weights
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.memory.buffers.gpu import gpu_buffers
from wisp_plan.memory.ledger import (
    CONTEXT_BYTES,
    LedgerOptions,
    compute_ledger,
    graphs_bytes,
    workspace_bytes,
)
from wisp_plan.memory.loading import loading_bytes
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.units import MIB
from wisp_plan.weights.declaration import DECLARATIONS
from wisp_plan.weights.held import hold
from wisp_plan.weights.layout import held_bytes
from wisp_plan.weights.sizes import weight_bytes

CUDA = LedgerOptions("cuda", "bf16", "bf16", 100, 16, 8192, 32, 512)
CPU = replace(CUDA, device="cpu", kv_dtype="float32")

GPTQ = Scheme("gptq", "int4", 1, 128, is_packed=True)
PACKED = replace(GPTQ, arrangement="compressed-tensors")

# Llama-3-8B: what is quantized is 32 layers of q, k, v, o, gate, up and down.
PROJECTIONS = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)
ROWS = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)
OTHERS = 8_030_261_248 - PROJECTIONS


@pytest.mark.parametrize(
    ("name", "weights", "scales"),
    [
        ("bf16", 2 * 8_030_261_248, 0),
        ("fp8", PROJECTIONS + 2 * OTHERS, 4 * ROWS),
        ("int8", PROJECTIONS + 2 * OTHERS, 4 * ROWS),
        ("int4", PROJECTIONS // 2 + 2 * OTHERS, 2 * PROJECTIONS // 128 + 4 * ROWS),
        ("nvfp4", PROJECTIONS // 2 + 2 * OTHERS, PROJECTIONS // 16 + 4 * ROWS),
        ("auto", 2 * 8_030_261_248, 0),
    ],
)
def test_weights_are_exact_in_every_format(spec_of, name, weights, scales):
    counted = weight_bytes(spec_of("llama-3-8b"), name, "cuda")
    assert (counted.weights, counted.scales) == (weights, scales)


def test_a_format_without_kernels_is_counted_as_bf16(spec_of):
    spec = spec_of("llama-3-8b")
    counted = weight_bytes(spec, "fp8", "cuda", ("int8",))
    assert counted.description == "bf16; no kernels for fp8 on this GPU"
    assert replace(counted, description="bf16") == weight_bytes(spec, "bf16", "cuda")


@pytest.mark.parametrize(
    ("columns", "name", "tile_bytes"),
    [
        (128, "int4", 4 * (2048 + 16 * 2 * 2)),  # padded to a tile of 256 columns
        (192, "int4", 4 * (2048 + 16 * 4 * 2)),  # no multiple of 128: groups of 64
        (96, "int4", 4 * (2048 + 16 * 8 * 2)),
        (96, "fp8", 4 * 2048),
    ],
)
def test_a_quantized_matrix_is_padded_to_whole_tiles(columns, name, tile_bytes):
    shape = 72, columns
    weight = WeightSpec("some.weight", shape, stacked(("some.weight", shape)), "projection")
    (held,) = hold([weight], name, tuple(PACKED_FORMATS))
    assert sum(held_bytes(held)) == 2 * tile_bytes + 128 * 4


def test_a_gpu_holds_stacked_matrices_padded_to_blocks_of_64_and_aligned_vectors(spec_of):
    spec = spec_of("smollm2-135m", hidden_size=72, num_attention_heads=9, head_dim=8, num_hidden_layers=1)
    spec = changed(spec, vocab=130, inner=40, kv_heads=3, has_qkv_bias=True)
    matrices = (
        192 * 128,  # embeddings [130, 72]
        128 * 128,  # Q, K and V: [72 + 24 + 24, 72]
        128 * 128,  # attention's output [72, 72]
        128 * 128,  # gate and up [80, 72]
        128 * 64,  # down [72, 40]
    )
    vectors = 3 * 128 + 128  # three norms of 72, and 120 biases of Q, K and V
    assert weight_bytes(spec, "bf16", "cuda").weights == 2 * (sum(matrices) + vectors)


def test_every_buffer_of_a_step_on_a_gpu_is_a_row(spec_of):
    spec, tokens = spec_of("llama-3-8b"), 512
    declared = gpu_buffers(spec, replace(CUDA, sm_count=132).step)
    buffers = {buffer.name: buffer.size_bytes for buffer in declared}
    assert len(buffers) == len(declared)
    assert buffers["residual"] == tokens * 4096 * 4
    assert buffers["normed"] == buffers["attention"] == buffers["output"] == tokens * 4096 * 2
    assert buffers["qkv"] == tokens * 6144 * 2
    assert buffers["swiglu"] == tokens * 14336 * 2
    assert buffers["rows"] == 32 * 4096 * 2
    assert buffers["logits"] == 32 * 128256 * 4
    assert buffers["rope_table.0"] == 8192 * 128 * 4
    assert workspace_bytes(spec, replace(CUDA, sm_count=132)) == sum(buffers.values())
    assert 100 * MIB < sum(buffers.values()) < 150 * MIB


@pytest.mark.parametrize(
    ("quantization", "hardware"), [("fp8", "hopper"), ("fp8", "ada"), ("int4", "hopper")]
)
def test_activations_in_e4m3_take_memory_where_kernels_multiply_them(spec_of, quantization, hardware):
    spec, options = spec_of("llama-3-8b"), replace(CUDA, quantization=quantization)
    more = workspace_bytes(spec, replace(options, formats=kernel_formats(hardware)))
    more -= workspace_bytes(spec, replace(CUDA, quantization="bf16"))
    codes, scales = 512 * 14336, 14336 // 128 * (512 + 2 * 256) * 4
    assert more == (codes + scales if (quantization, hardware) == ("fp8", "hopper") else 0)


def test_each_rotary_embedding_has_a_table(spec_of):
    spec = spec_of("llama-3-8b")
    rope = replace(attention_of(spec).rope, theta=1e6)
    others = changed(spec, rope=rope).layers
    mixed = replace(spec, layers=(*spec.layers[:16], *others[16:]))
    for options in (CUDA, CPU):
        more = workspace_bytes(mixed, options) - workspace_bytes(spec, options)
        assert more == 8192 * 128 * 4


def test_a_weight_with_a_dtype_of_its_own_counts_as_it_is_held(spec_of, monkeypatch):
    spec = replace(spec_of("smollm2-135m"), family="declared-here")
    decay = WeightSpec("decay", (192,), stacked(("decay", (192,))), "parameter", dtype="F32")
    monkeypatch.setitem(DECLARATIONS, spec.family, lambda spec: [*decoder_weights(spec), decay])
    without = weight_bytes(spec_of("smollm2-135m"), "bf16", "cuda").weights
    assert weight_bytes(spec, "bf16", "cuda").weights - without == 192 * 4


@pytest.mark.parametrize("stored", ["BF16", "F16", "F32"])
def test_the_stored_dtype_does_not_change_the_memory(spec_of, stored):
    spec = replace(spec_of("smollm2-135m"), dtype=stored)
    assert weight_bytes(spec, "bf16", "cuda").weights == 2 * 134_515_008
    assert weight_bytes(spec, "bf16", "cpu").weights == 4 * 134_515_008


@pytest.mark.parametrize(
    ("options", "per_token"),
    [
        (CUDA, 131_072),
        (replace(CUDA, kv_dtype="fp8"), 65_536),
        (replace(CUDA, kv_dtype="turbo3"), 512 * (48 + 8)),
        (replace(CUDA, kv_dtype="fp8", kv_bf16_layers=1), 65_536 + 65_536 // 16),
        (CPU, 262_144),
        (replace(CPU, kv_dtype="nvfp4"), 512 * (64 + 8)),
        (replace(CPU, kv_dtype="nvfp4", kv_bf16_layers=1), 480 * (64 + 8) + 32 * 512),
    ],
)
def test_the_kv_cache_is_blocks_of_tokens(spec_of, options, per_token):
    ledger = compute_ledger(spec_of("llama-3-8b"), options)
    assert ledger.kv_bytes_per_token == per_token
    assert ledger.kv_cache_bytes == 100 * 16 * per_token


def test_the_cpu_has_neither_graphs_nor_a_context(spec_of):
    ledger = compute_ledger(spec_of("smollm2-135m"), CPU)
    assert (ledger.graphs_bytes, ledger.context_bytes, ledger.scales_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("measured", "expect"), [(None, CONTEXT_BYTES), (0, 0), (300 * MIB, 300 * MIB)])
def test_a_measured_cuda_context_replaces_the_estimate(spec_of, measured, expect):
    ledger = compute_ledger(spec_of("smollm2-135m"), replace(CUDA, context_bytes=measured))
    assert ledger.context_bytes == expect


def test_the_total_is_the_sum_of_the_rows_and_each_row_is_explained(spec_of):
    ledger = compute_ledger(spec_of("llama-3-8b"), replace(CUDA, quantization="fp8"))
    rows = {row.name: row for row in ledger.rows()}
    assert list(rows) == [
        "weights",
        "scales",
        "KV cache",
        "states",
        "snapshots",
        "workspace",
        "graphs",
        "CUDA context",
        "loading",
    ]
    assert ledger.total_bytes == sum(row.size_bytes for row in rows.values())
    assert (
        rows["weights"].explanation == "fp8 (E4M3, a scale a row) rounded at load; embeddings and head bf16"
    )
    assert rows["KV cache"].explanation == "1600 tokens of 131072 B, bf16"
    assert rows.pop("loading").size_bytes == 0  # the KV cache takes more
    assert rows.pop("states").size_bytes == rows.pop("snapshots").size_bytes == 0  # attention alone
    assert all(row.size_bytes > 0 and row.explanation for row in rows.values())


@pytest.mark.parametrize(
    ("device", "blocks", "beyond"), [("cuda", 0, True), ("cuda", 4000, False), ("cpu", 0, False)]
)
def test_reading_the_weights_counts_where_serving_takes_less(spec_of, device, blocks, beyond):
    options = replace(CUDA, device=device, kv_blocks=blocks, max_step_tokens=8, max_concurrent=1)
    ledger = compute_ledger(spec_of("smollm2-135m"), options)
    serving = ledger.kv_cache_bytes + ledger.workspace_bytes + ledger.graphs_bytes
    held = ledger.weights_bytes + ledger.scales_bytes + ledger.context_bytes
    assert ledger.total_bytes == held + max(serving, loading_bytes(spec_of("smollm2-135m"), device))
    assert (ledger.beyond_serving_bytes > 0) is beyond


def test_a_checkpoint_that_is_stored_transposed_is_dequantized_a_matrix_at_a_time(spec_of):
    spec = spec_of("llama-3-8b")
    rules = (Rule(LayerNames(("lm_head",)), None), Rule(LayerNames((EVERY_LAYER,)), GPTQ))
    gptq = replace(spec, quantization=Quantization("gptq", rules))
    pack = replace(spec, quantization=Quantization("ct", (rules[0], replace(rules[1], scheme=PACKED))))
    least = loading_bytes(spec, "cpu")
    assert loading_bytes(gptq, "cpu") - least == 4 * 10 * 4096 * 14336
    assert loading_bytes(pack, "cpu") - least == 4 * 10 * 128 * 14336  # rows of the widest
    assert loading_bytes(gptq, "cuda") == loading_bytes(spec, "cuda") == 17 * 8 * MIB


def test_the_workspace_of_a_step_counts_buffers_alive_together(spec_of):
    spec = spec_of("llama-3-8b")
    activations = 512 * (2 * 4096 + 3 * 14336) * 2
    logits = 32 * (2 * 128256 * 4 + 128256 // 8)
    tables = 32 * 512 * 4 + 8192 * 128 * 4  # of blocks, and of cosines and sines
    one_context = 2 * 8192 * 8 * 128 * 4
    scores = 2 * (8 << 20) * 4  # as many queries at once as fit into 8 Mi scores
    assert workspace_bytes(spec, CPU) == 2 * activations + logits + tables + one_context + scores


@pytest.mark.parametrize(
    ("max_context", "max_step_tokens", "scores"),
    [(1024, 64, 32 * 64 * 1024), (8192, 512, 8 << 20), (131072, 512, 64 * 131072), (1 << 20, 8, 32 << 20)],
)
def test_the_cpu_computes_so_many_scores_at_once(spec_of, max_context, max_step_tokens, scores):
    spec = spec_of("llama-3-8b", max_position_embeddings=1 << 20)
    options = replace(CPU, max_context=max_context, max_step_tokens=max_step_tokens)
    shorter = replace(options, max_context=1, max_step_tokens=max_step_tokens)
    grown = workspace_bytes(spec, options) - workspace_bytes(spec, shorter)
    one_context = 2 * (max_context - 1) * 8 * 128 * 4
    tables = 32 * (-(-max_context // 16) - 1) * 4
    assert grown == 2 * (scores - 32 * max_step_tokens) * 4 + one_context + tables


@pytest.mark.parametrize(
    "more",
    [
        {"max_context": 16384},
        {"max_concurrent": 64},
        {"max_step_tokens": 1024},
    ],
)
@pytest.mark.parametrize("options", [CUDA, CPU])
def test_a_larger_step_needs_a_larger_workspace(spec_of, options, more):
    spec = spec_of("qwen3-0.6b")
    assert workspace_bytes(spec, replace(options, **more)) > workspace_bytes(spec, options)


@pytest.mark.parametrize(("max_concurrent", "graphs"), [(1, 1), (2, 2), (8, 4), (9, 5), (32, 7), (200, 13)])
def test_there_are_graphs_for_every_size_that_decode_steps_are_rounded_to(spec_of, max_concurrent, graphs):
    spec = spec_of("smollm2-135m")
    assert graphs_bytes(spec, max_concurrent) == graphs * graphs_bytes(spec, 1)
    assert graphs_bytes(spec, 1) == 3 * (30 * 8 + 12) * 4096  # greedy, sampled, with log-probabilities


def test_states_and_snapshots_have_rows_of_their_own():
    ledger = compute_ledger(shape_spec("qwen3.5-9b"), replace(CUDA, max_concurrent=8))
    rows = {row.name: row for row in ledger.rows()}
    slot_bytes = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)  # 24 layers: 32 heads in float32, inputs in bf16
    assert rows["states"].size_bytes == rows["snapshots"].size_bytes == 8 * slot_bytes
    assert rows["states"].explanation == "recurrent layers of 8 sequences"
    assert rows["snapshots"].explanation == "8 states of the prefix cache"
    alone = compute_ledger(shape_spec("qwen3.5-9b"), replace(CUDA, max_concurrent=1))
    rows_alone = {row.name: row.explanation for row in alone.rows()}
    assert rows_alone["states"] == "recurrent layers of 1 sequence"
    assert rows_alone["snapshots"] == "1 state of the prefix cache"
    blocks = CUDA.kv_blocks * CUDA.block_tokens * ledger.kv_bytes_per_token
    assert rows["KV cache"].size_bytes == blocks == ledger.kv_cache_bytes - 16 * slot_bytes
