"""Models that can have the persistent decode kernel; manifests describe the models they name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from spec_changes import attention_of, changed

from wisp_plan.kv_formats.fp8 import FP8
from wisp_plan.memory.buffers.persistent import (
    LAYER_WORDS,
    MAX_BLOCKS,
    exchanged,
    layer_words,
    persistent,
)
from wisp_plan.memory.buffers.persistent import layer_table as layer_table_buffer
from wisp_plan.memory.ledger import LedgerOptions, step_of
from wisp_plan.presets import SHAPES, shape_spec
from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PACKED_FORMATS
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import NormSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.cli.kernels import KV_FORMATS as CHOICES
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import Source
from wisp_runtime.ops.cuda.persistent.arguments import (
    CLUSTER,
    cluster_reciprocal,
    delta_weights,
    layer_table,
    layer_weights,
    require_repeated,
    scales_word,
)
from wisp_runtime.ops.cuda.persistent.model import (
    KV_FORMATS,
    equal_widths,
    faster_up_to,
    kernel_model,
    max_sequences,
    parallel_splits,
    step_format,
    unsupported_reason,
    variant_widths,
)
from wisp_runtime.ops.cuda.persistent.row_limits import MAX_SM_COUNT
from wisp_runtime.ops.protocol.attention import KvEncoding

CATALOGUE = Catalogue()
SPEC = shape_spec("llama-3-8b")
OPTIONS = LedgerOptions("cuda", "bf16", "bf16", 100, 16, 8192, 32, 512)
PREPARED = CATALOGUE.manifest("hopper").models


@pytest.mark.parametrize("entry", PREPARED, ids=lambda entry: entry.name)
def test_a_manifest_describes_the_shape_of_its_name(entry):
    first = entry.formats[0]
    assert first in ("bf16", "bf16:mxfp4_fields")
    (expected,) = CATALOGUE.templates("hopper", first, kernel_model(shape_spec(entry.name)))
    chosen = CATALOGUE.resolve("hopper", first, entry.name)["persistent_decode"]
    assert isinstance(chosen, Source)
    assert (chosen.defines, chosen.path) == (expected.defines, expected.path)


@pytest.mark.parametrize(
    ("formats", "macros"),
    [
        ("bf16", set()),
        ("fp8_block", {"-DWISP_WEIGHT_FORMAT=fp8_block"}),
        ("int4+fp8", {"-DWISP_WEIGHT_FORMAT=int4", "-DWISP_HEAD_FORMAT=fp8"}),
        ("bf16:mxfp4_fields", {"-DWISP_EXPERT_FORMAT=mxfp4_fields"}),
        (
            "fp8:mxfp4_fields+fp8",
            {
                f"-DWISP_{kind}"
                for kind in ("WEIGHT_FORMAT=fp8", "EXPERT_FORMAT=mxfp4_fields", "HEAD_FORMAT=fp8")
            },
        ),
        ("bf16/fp8", {"-DWISP_KV_FORMAT=fp8"}),
        ("int4+fp8/fp8", {"-DWISP_WEIGHT_FORMAT=int4", "-DWISP_HEAD_FORMAT=fp8", "-DWISP_KV_FORMAT=fp8"}),
    ],
)
def test_the_template_is_compiled_for_the_formats_of_layers_head_and_cache(formats, macros):
    (source,) = CATALOGUE.templates("hopper", formats, kernel_model(SPEC))
    assert {macro for macro in source.defines if "FORMAT" in macro} == macros


def test_the_kernel_reads_the_kv_formats_that_it_names():
    header = (CATALOGUE.root / "hopper/persistent/layers.cuh").read_text()
    named = header.partition("namespace kv_formats {")[2].partition("}")[0]
    assert re.findall(r"using (\w+)", named) == [kv_format.name for kv_format in KV_FORMATS] == list(CHOICES)


def test_quantized_steps_have_equal_bits_from_32_sequences_on():
    assert equal_widths("bf16") == (8, 16, 32, 64)
    assert equal_widths("int4+fp8") == (32, 64)


@pytest.mark.parametrize(
    ("sequences", "kv_heads", "splits"),
    [
        (1, 8, 16),
        (4, 8, 4),
        (8, 8, 1),  # two splits take as long to combine as they save
        (16, 8, 1),
        (32, 8, 1),  # more work than blocks: still a split each
        (1, 1, 132),  # the kernel has its own limit
    ],
)
def test_a_sequence_may_have_as_many_splits_as_there_are_blocks_for(sequences, kv_heads, splits):
    assert parallel_splits(sequences, kv_heads, MAX_SM_COUNT) == splits


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("quantization", ["bf16", "int4", "bf16+fp8"])
@pytest.mark.parametrize("sequences", [1, 8, 9, 20, 32, 64])
def test_the_ledger_counts_the_rows_that_the_kernel_exchanges(deterministic, quantization, sequences):
    options = replace(
        OPTIONS, quantization=quantization, max_concurrent=sequences, deterministic=deterministic
    )
    widths = variant_widths(quantization, sequences, batch_invariant=deterministic)
    *counted, _layer_table = persistent(SPEC, step_of(SPEC, options))
    assert tuple(counted) == exchanged(SPEC, widths[-1])


def test_the_template_reads_every_packed_format_and_no_other():
    (template,) = CATALOGUE.manifest("hopper").templates
    assert set(template.formats) == {"bf16", *PACKED_FORMATS, *EXPERT_FORMATS}
    assert CATALOGUE.templates("hopper", "fp8+fp6", kernel_model(SPEC)) == []


def test_the_shapes_of_the_families_that_are_served_are_prepared():
    named = {entry.name for entry in PREPARED}
    served = ("llama", "mistral", "qwen2.5-7b", "qwen3", "smollm2")  # Qwen2.5 0.5B is under the 1 GiB
    shapes = {name: shape_spec(name) for name in SHAPES if name.startswith(served)}
    timed = {name: spec for name, spec in shapes.items() if faster_up_to("bf16", spec)}
    assert named >= {name for name, spec in timed.items() if unsupported_reason(spec, MAX_SM_COUNT) is None}


def test_a_model_that_differs_in_layers_vocabulary_or_window_alone_has_the_same_kernel():
    other = changed(SPEC, layers=3, vocab=1000, window=64, ties_embeddings=True, max_context=9)
    assert kernel_model(other) == kernel_model(SPEC)


@pytest.mark.parametrize(
    ("changes", "workers", "says"),
    [
        ({}, MAX_SM_COUNT, None),
        ({}, 128, None),  # 64 clusters of 64 rows: just enough for 4,096
        ({}, 114, "hidden_size has 4096 rows, over the 3648 that 114 thread blocks hold"),  # an H100 PCIe
        ({"hidden": 8192}, MAX_SM_COUNT, None),  # two units
        ({"hidden": 8576}, MAX_SM_COUNT, "hidden_size has 8576 rows, over the 8448"),
        ({"heads": 64, "kv_heads": 8}, MAX_SM_COUNT, None),  # 10,240 rows of Q, K and V: four units
        ({"heads": 128, "kv_heads": 16}, MAX_SM_COUNT, "Q, K and V has 20480 rows, over the 16896"),
        ({"head_size": 96}, MAX_SM_COUNT, "heads of 96 channels, not 64, 128 or 256"),
        ({"has_sinks": True}, MAX_SM_COUNT, None),
        ({"kv_heads": 2}, MAX_SM_COUNT, "16 query heads share a KV head, over 8"),
        (
            {"rope": replace(attention_of(SPEC).rope, rotary_size=32)},
            MAX_SM_COUNT,
            "32 of 128 channels of a head rotate, no multiple of 64",
        ),
    ],
)
def test_a_shape_that_the_template_cannot_take_says_why(changes, workers, says):
    reason = unsupported_reason(changed(SPEC, **changes), workers)
    assert reason is None if says is None else says in reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norms": NormSpec(1e-6, follow=True)}, "it has norms behind a block"),
        ({"ffn": DenseSpec(14336, gate_scale=0.5)}, "it has a scaled MLP"),
        ({"ffn": DenseSpec(14336, "gelu_tanh")}, "it has activations other than gated SiLU"),
    ],
)
def test_a_layer_that_the_template_does_not_compute_says_why(changes, says):
    layers = (replace(SPEC.layers[0], **changes),) * 2
    assert unsupported_reason(replace(SPEC, layers=layers), MAX_SM_COUNT) == says


@pytest.mark.parametrize("name", ["embedding_scale", "logits_scale"])
def test_scaled_embeddings_and_logits_are_the_general_paths(name):
    scaled = replace(SPEC, **{name: 2.0})
    assert unsupported_reason(scaled, MAX_SM_COUNT) == "it has scaled embeddings or logits"


WINDOWED = shape_spec("gpt-oss-20b")


def with_windows(*windows):
    """Return layers of gpt-oss with these windows."""
    mixer = WINDOWED.layers[0].mixer
    layers = (replace(WINDOWED.layers[0], mixer=replace(mixer, window=window)) for window in windows)
    return replace(WINDOWED, layers=tuple(layers))


@pytest.mark.parametrize(
    ("spec", "period"),
    [
        (WINDOWED, 2),
        (with_windows(128, 128, 128, None, 128), 4),  # the last period may be shorter
        (with_windows(128, 128), 1),
        (with_windows(None, None), 1),
        (with_windows(None, 128, None, 128), None),  # the last sees less
        (with_windows(128, None, None), None),
        (with_windows(128, None, 64, None), None),
        (
            replace(
                WINDOWED, layers=(*WINDOWED.layers[:1], replace(WINDOWED.layers[1], norms=NormSpec(1e-6)))
            ),
            None,
        ),
    ],
)
def test_the_last_layer_of_each_few_may_see_all_tokens(spec, period):
    reason = unsupported_reason(spec, MAX_SM_COUNT)
    if period is None:
        assert reason is not None
        assert reason.startswith("its layers differ")
    else:
        assert reason is None
        assert kernel_model(spec).get("window_period", 1) == period


def test_the_table_of_a_gpt_oss_has_sinks_and_router_biases_behind_the_words_that_all_have():
    spec = replace(WINDOWED, layers=WINDOWED.layers[:2])
    addresses: dict[str, int] = {}
    encodings = (KvEncoding(FP8, 0.5, 2.0),) * 2
    words = layer_table(
        spec, lambda name: addresses.setdefault(name, 1000 + len(addresses)), encodings, 1 << 20
    )
    assert layer_table_buffer(spec).shape == words.shape == (2 * (LAYER_WORDS + 2),)
    second = words[LAYER_WORDS + 2 :].tolist()
    assert second[-2:] == [addresses["layers.1.sinks"], addresses["layers.1.router.bias"]]
    assert second[3] == addresses["layers.1.experts.down.weight"]
    assert second[6:8] == [addresses[f"layers.1.experts.{name}.bias"] for name in ("gate_up", "down")]


def test_the_formats_of_layers_experts_and_head_are_named():
    layer, experts = {"layers.0.qkv.weight": "bf16"}, {"layers.0.experts.down.weight": "mxfp4_fields"}
    assert step_format(layer) == "bf16"
    assert step_format(layer | experts) == "bf16:mxfp4_fields"
    assert step_format({"layers.0.qkv.weight": "mxfp4"} | experts) == "mxfp4:mxfp4_fields"
    assert step_format({"layers.0.qkv.weight": "mxfp4_fields"} | experts) == "mxfp4_fields"
    assert step_format({"layers.0.qkv.weight": "int4", "head.weight": "fp8"}) == "int4+fp8"
    assert step_format(layer | {"head.weight": "bf16"}) == "bf16"
    assert step_format(layer | {"layers.0.output.weight": "fp8"}) == "bf16, fp8"


HYBRID = shape_spec("qwen3.5-9b")
DELTA_NET = HYBRID.mixers(DeltaNetSpec)[0]


def with_delta_net(**changes):
    """Return the hybrid with other Gated DeltaNets."""
    other = replace(DELTA_NET, **changes)
    layers = (replace(layer, mixer=other) if layer.mixer == DELTA_NET else layer for layer in HYBRID.layers)
    return replace(HYBRID, layers=tuple(layers))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (HYBRID, None),
        (replace(HYBRID, layers=HYBRID.layers[:7]), None),  # the last period may be shorter
        (replace(HYBRID, layers=HYBRID.layers[::-1]), "its layers differ"),  # attention is not the last
        (replace(HYBRID, layers=HYBRID.layers[:3]), "its layers differ"),
        (with_delta_net(value_size=64), "128 and 64, convolutions of 4 are not 128, 128 and 4"),
        (with_delta_net(kernel=3), "convolutions of 3 are not"),
        (with_delta_net(state_dtype="bf16"), "states are bf16, not float32"),
        (with_delta_net(value_heads=16), "another width than attention's queries"),
    ],
)
def test_layers_of_two_kinds_come_in_a_period(spec, says):
    reason = unsupported_reason(spec, MAX_SM_COUNT)
    assert reason is None if says is None else says in reason


def test_a_hybrid_is_refused_in_deterministic_mode_and_served_up_to_16_sequences():
    reason = unsupported_reason(HYBRID, MAX_SM_COUNT, batch_invariant=True)
    assert reason is not None
    assert "bit by bit" in reason
    assert [faster_up_to(name, HYBRID) for name in ("bf16", "fp8_block", "fp8")] == [16, 16, 16]


def test_a_gpt_oss_is_served_with_its_own_experts_format_up_to_two_sequences():
    assert [faster_up_to(name, WINDOWED) for name in ("bf16", "bf16:mxfp4_fields")] == [0, 2]


def test_a_mixture_is_served_up_to_the_kernels_own_bound():
    spec = shape_spec("qwen3-30b-a3b")
    assert [faster_up_to(name, spec) for name in ("bf16", "fp8_block", "int4")] == [max_sequences(spec)] * 3


def test_the_table_of_a_hybrid_has_each_kinds_weights():
    layers = require_repeated(HYBRID)
    names = [name for index in range(4) for name in layer_weights(layers, index)]
    names += [name for index in range(4) for name in delta_weights(layers, index)]
    addresses = {name: 1000 + number for number, name in enumerate(dict.fromkeys(names))}
    spec = replace(HYBRID, layers=HYBRID.layers[:4])
    words = layer_table(
        spec, lambda name: addresses.get(name, 0), (KvEncoding(FP8, 0.5, 2.0),), 1 << 20
    ).tolist()
    rows = [words[first : first + LAYER_WORDS] for first in range(0, 4 * LAYER_WORDS, LAYER_WORDS)]
    assert [row[0] for row in rows[:3]] == [addresses[f"layers.{index}.qkvz.weight"] for index in range(3)]
    assert rows[3][0] == addresses["layers.3.qkv.weight"]
    assert [row[-3] for row in rows] == [0, 0, 0, scales_word(KvEncoding(FP8, 0.5, 2.0))]
    behind = (1 << 20) + 8 * 4 * LAYER_WORDS
    assert [row[-1] for row in rows] == [behind, behind + 40, behind + 80, 0]
    assert words[4 * LAYER_WORDS :][5:10] == [addresses[name] for name in delta_weights(layers, 1)]
    assert layer_table_buffer(spec).shape == (len(words),)


HYBRID_MIXTURE = shape_spec("qwen3.6-35b-a3b")
MIXTURE = HYBRID_MIXTURE.ffns(MoeSpec)[0]


def with_experts(**changes):
    """Return the hybrid with other experts."""
    other = replace(MIXTURE, **changes)
    return replace(HYBRID_MIXTURE, layers=tuple(replace(layer, ffn=other) for layer in HYBRID_MIXTURE.layers))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (HYBRID_MIXTURE, None),
        (shape_spec("qwen3-next-80b-a3b"), None),
        (with_experts(shared=DenseSpec(1024)), "a shared expert of another size, or without a gate"),
        (with_experts(shared=DenseSpec(512, "gelu_tanh")), "a shared expert of another size"),
        (with_experts(has_shared_gate=False), "a shared expert of another size, or without a gate"),
        (with_experts(inner=32, shared=DenseSpec(32), router=RouterSpec(8, 2)), "too small for all warps"),
    ],
)
def test_a_shared_expert_is_one_more_of_the_others_size(spec, says):
    reason = unsupported_reason(spec, MAX_SM_COUNT)
    assert reason is None if says is None else says in reason


def test_a_kernel_that_was_never_timed_is_for_no_number_of_sequences():
    assert kernel_model(HYBRID_MIXTURE)["shared_expert"] == 1
    assert faster_up_to("bf16", HYBRID_MIXTURE) == 0
    assert faster_up_to("bf16", with_experts(shared=None, has_shared_gate=False)) == 0
    assert faster_up_to("fp8_block", shape_spec("qwen3-next-80b-a3b")) == 0


def test_experts_of_a_hybrid_were_timed_in_block_fp8():
    assert faster_up_to("fp8_block", HYBRID_MIXTURE) == 8


def test_a_shared_expert_has_a_gate_in_the_table_a_logit_and_rows_of_activations():
    spec = replace(HYBRID_MIXTURE, layers=HYBRID_MIXTURE.layers[:4])
    words = layer_table(spec, lambda name: len(name), (KvEncoding(FP8, 1.0, 1.0),), 1 << 20)
    assert layer_words(spec) == LAYER_WORDS + 1
    assert [words[layer * layer_words(spec) + LAYER_WORDS] for layer in range(4)] == [
        len(f"layers.{layer}.shared_gate.weight") for layer in range(4)
    ]
    assert words[LAYER_WORDS - 1] == (1 << 20) + 8 * 4 * layer_words(spec)
    assert layer_table_buffer(spec).shape == (len(words),)
    shapes = {buffer.name: buffer.shape for buffer in exchanged(spec, 32)}
    assert shapes["step.router_logits"] == (64, 257)
    assert shapes["step.gated"] == (32 * 9, 512)


def test_clusters_divide_by_a_multiplication():
    tiles = np.arange(1 << 16, dtype=np.uint64)
    for clusters in range(2, MAX_BLOCKS // CLUSTER + 1):
        reciprocal = cluster_reciprocal(clusters * CLUSTER)
        assert 0 < reciprocal < 1 << 32
        for cluster in (1, clusters // 2, clusters):  # the largest operand of over_clusters: all tiles' end
            number = tiles * np.uint64(cluster)
            assert np.array_equal(
                number * np.uint64(reciprocal) >> np.uint64(32), number // np.uint64(clusters)
            )
