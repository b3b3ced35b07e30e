"""Operator and runtime hold weights alike on every generation of GPUs, and count the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_operator import api
from wisp_operator.core.fit.verdict import Device, check, plan
from wisp_plan.hardware.catalogue import CARDS, hardware_of
from wisp_plan.hardware.gpus import DEFAULT_FRACTION
from wisp_plan.hardware.kernel_formats import KERNEL_FORMATS, kernel_formats
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import require_fit
from wisp_runtime.errors import DoesNotFit
from wisp_runtime.ops.protocol.device import Memory

LLAMA = shape_spec("llama-3.2-1b")
SIZES = {"maxContext": 4096, "maxConcurrent": 8}
SCHEMES = {
    "fp8 (E4M3, 128 x 128)": Scheme("fp8", "fp8", 128, 128),
    "int8 (a scale a row)": Scheme("compressed-tensors", "int8", 1, 0),
    "int4 (groups of 64, zero points)": Scheme("awq", "int4", 1, 64, is_packed=True, has_zero_points=True),
    "nvfp4 (E2M1, groups of 16)": Scheme("modelopt", "nvfp4", 1, 16, is_packed=True),
}
MEMORY_BYTES = 40 * GIB


def stored(scheme: Scheme) -> ModelSpec:
    rules = Rule(LayerNames(("lm_head",)), None), Rule(LayerNames((EVERY_LAYER,)), scheme)
    return replace(LLAMA, quantization=Quantization(scheme.arrangement, rules))


class Published:
    """A model's files as a hub has them."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def config(self) -> ModelSpec:
        return self._spec

    def tensors(self) -> None:
        return None


def both(spec: ModelSpec, hardware: str, quantization: str):
    """The plans of the operator and of the runtime for a card of one generation."""
    card = next(card for card in CARDS if card.hardware == hardware)
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "hf://acme/chat"},
            "gpu": {"count": 1},
            "runtime": {"quantization": quantization, **SIZES},
        },
    }
    device = Device("cuda", card.name, int(MEMORY_BYTES * DEFAULT_FRACTION), card.hardware)
    planned = plan(api.parse(document), Published(spec), device)
    formats = kernel_formats(hardware_of(card.capability))  # as an open GPU has them
    memory = Memory("cuda", card.name, MEMORY_BYTES, MEMORY_BYTES, None, None, formats)
    settings = {"quantization": quantization, "max_context": 4096, "max_concurrent": 8}
    config = ServeConfig("m", **settings)  # type: ignore[arg-type]
    return planned, require_fit(spec, config, memory)


@pytest.mark.parametrize("hardware", KERNEL_FORMATS)
@pytest.mark.parametrize("quantization", ["auto", "bf16"])
@pytest.mark.parametrize("title", SCHEMES)
def test_both_sides_count_what_that_gpu_has_kernels_for(monkeypatch, title, quantization, hardware):
    spec = stored(SCHEMES[title])
    for formats in (("bf16",), ("bf16", *PACKED_FORMATS)):
        monkeypatch.setitem(KERNEL_FORMATS, hardware, formats)
        planned, started = both(spec, hardware, quantization)
        weights = [fit.ledger.rows()[:2] for fit in (planned, started)]
        assert weights[0] == weights[1]
        is_held = quantization == "auto" and len(formats) > 1
        assert (planned.quantization != "bf16") is is_held
        assert started.ledger.weight_description.startswith(title if is_held else "bf16, dequantized from ")


@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4", "nvfp4"])
def test_both_sides_round_where_there_are_kernels(monkeypatch, quantization):
    monkeypatch.setitem(KERNEL_FORMATS, "ada", ("bf16", *PACKED_FORMATS))
    planned, started = both(LLAMA, "ada", quantization)
    assert planned.quantization == started.quantization == quantization
    assert planned.ledger.rows()[:2] == started.ledger.rows()[:2]
    assert "rounded at load" in planned.ledger.weight_description


def test_deterministic_mode_which_reads_bf16_alone_is_proposed_no_other_kv_format():
    spec, usable_bytes = shape_spec("qwen3-8b"), 21 * GIB
    runtime = {"deterministic": True, "maxContext": 40000, "maxConcurrent": 1}
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "hf://acme/chat"}, "gpu": {"count": 1}, "runtime": runtime},
    }
    planned = plan(api.parse(document), Published(spec), Device("cuda", "H200", usable_bytes, "hopper"))
    memory = Memory("cuda", "H200", usable_bytes, usable_bytes, None, None, kernel_formats("hopper"))
    config = ServeConfig("m", deterministic=True, max_context=40000, max_concurrent=1, memory_fraction=0.99)
    with pytest.raises(DoesNotFit) as refused:
        require_fit(spec, config, memory)

    assert not planned.fits
    for message in (planned.message, str(refused.value)):
        assert "quantization: fp8" in message
        assert "kvCacheDtype" not in message
        assert "kv-cache-dtype" not in message


@pytest.mark.parametrize("kv", ["fp8", "turbo4"])
def test_deterministic_mode_with_another_kv_format_does_not_fit(kv):
    """No rule of the CRD: an object that was accepted before could not be updated any more."""
    runtime = {"deterministic": True, "kvCacheDtype": kv}
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "hf://acme/chat"}, "gpu": {"count": 1}, "runtime": runtime},
    }
    device = Device("cuda", "H200", 100 * GIB, "hopper")
    report = check(api.parse(document), Published(LLAMA), device)
    assert report.verdict == "DoesNotFit"
    assert "takes bf16 keys and values alone: set kvCacheDtype (--kv-cache-dtype) to auto" in report.message
