"""``wisp fit`` of quantized checkpoints: the formats found in the headers, as each card would hold them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hollow_checkpoint import LLAMA_8B, write_tensors

from wisp_operator.cli.main import main
from wisp_plan.families.config import parse_config
from wisp_plan.hardware.kernel_formats import KERNEL_FORMATS
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored
from wisp_plan.weights.tensors import tensors_of

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
LACKING = "bf16, dequantized from fp8; no kernels for fp8_block on this GPU"
KV_FP8 = "kvCacheDtype: fp8"
GIB = 2**30


@pytest.fixture
def checkpoint(tmp_path):
    """Make an 8B checkpoint of which only the header is there; ``bf16`` names layers that are unquantized."""

    def make(section=None, bf16=()):
        config = LLAMA_8B if section is None else LLAMA_8B | {"quantization_config": section}
        spec = parse_config(config)
        weights = [
            replace(weight, sources=tuple(replace(source, stored=None) for source in weight.sources))
            if any(name in source.tensor for source in weight.sources for name in bf16)
            else weight
            for weight in as_stored(declare(spec), {}, spec.quantization)
        ]
        tensors = ((tensor.name, tensor.dtypes[0], tensor.shape) for tensor in tensors_of(weights))
        return write_tensors(tmp_path, config, tensors)

    return make


@pytest.fixture
def kernels(monkeypatch):
    """Give L4 and its kind kernels for these packed formats."""

    def give(*names):
        monkeypatch.setitem(KERNEL_FORMATS, "ada", ("bf16", *names))

    return give


def fit(folder, *arguments):
    return CliRunner().invoke(main, ["fit", str(folder), "--gpu", "l4", *arguments])


def answer(folder, *arguments):
    (found,) = json.loads(fit(folder, "--json", *arguments).output)
    return found


@pytest.mark.parametrize(
    ("section", "formats", "held", "words", "gib"),
    [
        (None, PACKED_FORMATS, "bf16", "bf16", 14.96),
        (FP8, (), "bf16", LACKING, 14.96),
        (FP8, ("fp8",), "bf16", LACKING, 14.96),  # kernels for scales a row alone
        (
            FP8,
            PACKED_FORMATS,
            "fp8_block",
            "fp8 (E4M3, 128 x 128) as stored; embeddings and head bf16",
            8.49,
        ),
        (
            AWQ,
            PACKED_FORMATS,
            "int4_zero",
            "int4 (groups of 128, zero points) as stored; embeddings and head bf16",
            5.37,
        ),
    ],
)
def test_the_formats_are_those_of_the_headers_as_that_card_holds_them(
    checkpoint, kernels, section, formats, held, words, gib
):
    kernels(*formats)
    found = answer(checkpoint(section))
    rows = {row["name"]: row for row in found["rows"]}
    assert (found["quantization"], rows["weights"]["why"]) == (held, words)
    assert found["weightsBytes"] == rows["weights"]["bytes"] + rows["scales"]["bytes"]
    assert found["weightsBytes"] / GIB == pytest.approx(gib, abs=0.01)
    assert (" with weights in " in found["message"]) is (held != "bf16")


def test_a_layer_that_the_config_calls_quantized_and_the_file_stores_in_bf16_counts_as_bf16(
    checkpoint, kernels
):
    kernels(*PACKED_FORMATS)
    plain = answer(checkpoint(FP8))
    mixed = answer(checkpoint(FP8, bf16=("layers.0.mlp.down_proj",)))
    assert mixed["quantization"] == "fp8_block, bf16"
    assert mixed["rows"][0]["why"].endswith("some projections, embeddings and head bf16")
    matrix = 4096 * 14336
    assert mixed["rows"][0]["bytes"] - plain["rows"][0]["bytes"] == matrix


def test_the_table_shows_the_formats_and_their_scales(checkpoint, kernels):
    kernels(*PACKED_FORMATS)
    lines = fit(checkpoint(AWQ)).output.splitlines()
    assert "int4 (groups of 128, zero points) as stored" in lines[2]
    assert lines[3].split()[0] == "scales"


@pytest.mark.parametrize(
    ("section", "arguments", "code", "said"),
    [
        # an unquantized checkpoint: the first format that suffices, 8 bits before 4
        (None, ["--max-context", "57344"], 1, f"fits with quantization: fp8, or {KV_FP8}, or maxContext "),
        (None, ["--max-context", "98304"], 1, "fits with quantization: int4, or kvCacheDtype: nvfp4, or max"),
        (
            None,
            ["--max-context", "98304", "--quantization", "fp8"],
            1,
            f"quantization: int4, or {KV_FP8}",
        ),
        (None, ["--max-context", "98304", "--kv-cache-dtype", "nvfp4"], 0, "✓ fits"),
        (None, ["--quantization", "int4", "--head-quantization", "fp8"], 0, "with weights in int4+fp8"),
        # neither alone: both, which keep the context, before a shorter one
        (None, ["--max-context", "131072"], 1, f"fits with quantization: fp8 and {KV_FP8}, or maxContext "),
        # a quantized one: never another format
        (FP8, ["--max-context", "98304"], 1, f"free; fits with {KV_FP8}, or maxContext "),
        (FP8, ["--max-context", "57344", "--quantization", "bf16"], 1, "fits with quantization: auto, or kv"),
        (FP8, ["--quantization", "int4"], 2, "the checkpoint is quantized already (fp8)"),
        (FP8, ["--quantization", "fp8"], 0, "with weights in fp8_block"),
    ],
)
def test_a_proposal_is_the_smallest_change_that_the_checkpoint_allows(
    checkpoint, kernels, section, arguments, code, said
):
    kernels(*PACKED_FORMATS)
    done = fit(checkpoint(section), *arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output


@pytest.mark.parametrize(
    ("formats", "arguments", "code", "said"),
    [
        ((), ["--max-context", "57344"], 1, f"free; fits with {KV_FP8}, or maxContext "),
        ((), ["--quantization", "fp8"], 2, "fp8 cannot be served on this device yet; available: bf16."),
        (("int8",), ["--max-context", "57344"], 1, f"fits with quantization: int8, or {KV_FP8}"),
    ],
)
def test_nothing_is_offered_that_the_card_has_no_kernels_for(
    checkpoint, kernels, formats, arguments, code, said
):
    kernels(*formats)
    done = fit(checkpoint(), *arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output
