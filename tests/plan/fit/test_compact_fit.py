"""Quantized checkpoints on a CPU: float32 where it fits, codes where it does not."""

from dataclasses import replace

import pytest

from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.units import GIB

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
CPU = FitRequest(device="cpu")


def on_cpu(spec, gib, request=CPU):
    return check(spec, request, available_bytes=int(gib * GIB), device_name="this machine")


@pytest.mark.parametrize(
    ("gib", "held", "fits"),
    [
        (64, "float32", True),  # 30 GiB of weights
        (24, "byte codes", True),  # 11 GiB
        (8, "byte codes", False),
    ],
)
def test_auto_takes_codes_only_where_float32_does_not_fit(spec_of, gib, held, fits):
    fit = on_cpu(spec_of("llama-3-8b", quantization_config=GPTQ), gib)
    assert (fit.fits, fit.quantization) == (fits, held)
    options = fit.ledger.options
    assert options.quantization == ("auto" if held == "float32" else "compact")
    if held != "float32":
        assert fit.ledger.weight_description == "gptq int4 in codes of a byte; others float32"
        assert f"with weights in {held}" in fit.message


def test_float32_asked_for_names_auto_as_the_remedy(spec_of):
    spec = spec_of("llama-3-8b", quantization_config=GPTQ)
    fit = on_cpu(spec, 24, replace(CPU, quantization="bf16"))
    assert not fit.fits
    assert fit.message.endswith("fits with quantization: auto")


def test_an_unquantized_checkpoint_is_float32_on_any_machine(spec_of):
    fit = on_cpu(spec_of("llama-3-8b"), 24)
    assert (fit.fits, fit.quantization) == (False, "float32")
    assert fit.message.endswith("GiB of free memory")


def test_the_ledger_counts_codes_scales_and_what_stays_float32(spec_of):
    spec = spec_of("llama-3-8b", quantization_config=GPTQ)
    ledger = on_cpu(spec, 24).ledger
    hidden, mlp, kv, vocab, layers = 4096, 14336, 1024, 128256, 32
    projections = layers * hidden * (2 * hidden + 2 * kv + 3 * mlp)
    others = 4 * (2 * vocab * hidden + (2 * layers + 1) * hidden)
    assert ledger.weights_bytes == projections + others
    assert ledger.scales_bytes == 4 * projections // 128
