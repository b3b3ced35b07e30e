"""The verdict: what fits where, with which numbers, in which words."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from wisp_plan.checkpoint.header import Header
from wisp_plan.checkpoint.index import TensorIndex
from wisp_plan.errors import LayersUnsupported, RequestInvalid, TensorsMismatch
from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.hardware import kernel_layers
from wisp_plan.hardware.gpus import find_card, usable_bytes
from wisp_plan.hardware.kernel_formats import KERNEL_FORMATS
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB, MIB

ALL_FORMATS = ("bf16", "fp8", "int8", "int4", "nvfp4")
SEQUENCES = 32
UNTRIED = "on which no model has run yet; the H200 is tried"
# Of KV formats bf16 alone, so that each row shows its own remedy.
request_of = partial(FitRequest, max_concurrent=SEQUENCES, kv_dtypes_available=("bf16",))
EVERYTHING = request_of(formats_available=ALL_FORMATS, kv_dtypes_available=("bf16", "fp8"))
DEFAULT = request_of()
CPU = request_of(device="cpu")


def on(card: str, spec: ModelSpec, request: FitRequest = DEFAULT):
    return check(
        spec, request, available_bytes=usable_bytes(find_card(card)), device_name=find_card(card).name
    )


@pytest.mark.parametrize(
    ("model", "card", "fits"),
    [
        ("llama-3-8b", "t4", False),
        ("llama-3-8b", "l4", True),
        ("llama-3-8b", "h100", True),
        ("qwen2.5-7b", "t4", False),
        ("qwen2.5-7b", "a10g", True),
        ("qwen3-8b", "l4", True),
        ("mistral-7b-v0.3", "rtx4090", True),
        ("llama-3.2-3b", "t4", True),
        ("smollm2-135m", "t4", True),
    ],
)
def test_real_models_fit_the_cards_that_people_run_them_on(spec_of, model, card, fits):
    assert on(card, spec_of(model)).fits is fits


def test_layers_without_kernels_are_refused_for_every_gpu_and_fit_the_cpu(spec_of, monkeypatch):
    monkeypatch.setitem(kernel_layers.WITHOUT_KERNELS, "layers of tomorrow", lambda _: True)
    spec = spec_of("smollm2-135m")
    with pytest.raises(LayersUnsupported, match=r"no GPU kernels for layers of tomorrow, which Llama"):
        on("h100", spec)
    assert on("h100", spec, CPU).fits


@pytest.mark.parametrize(
    ("card", "max_context", "expect"),
    [
        ("l4", None, range(25_000, 30_000)),  # what 19.7 GiB leave beside 15 GiB of weights, 128 KiB a token
        ("a100-40gb", None, range(131_072, 131_073)),
        ("l4", 8192, range(8192, 8193)),
    ],
)
def test_max_context_is_the_request_or_the_longest_that_fits(spec_of, card, max_context, expect):
    fit = on(card, spec_of("llama-3.1-8b"), request_of(max_context=max_context))
    assert fit.fits
    assert fit.max_context in expect
    assert fit.max_context % 16 == 0


def test_the_sentence_of_a_model_that_fits(spec_of):
    fit = on("l4", spec_of("llama-3.1-8b"))
    context = fit.max_context
    assert fit.message == (
        f"needs 19.7 GiB for a context of {context} tokens (of the model's 131072, which would need more), "
        "the L4 has 19.7 GiB free"
    )
    assert on("h100", spec_of("smollm2-135m")).message == (
        "needs 1.2 GiB for a context of 8192 tokens, the H100 has 71.1 GiB free"
    )


@pytest.mark.parametrize(
    ("model", "card", "request_", "advice"),
    [
        # a shorter context is enough
        ("llama-3.1-8b", "l4", request_of(max_context=131072), ["maxContext"]),
        # either is enough, and what keeps the context comes first
        (
            "llama-3.1-8b",
            "l4",
            replace(EVERYTHING, quantization="bf16", max_context=57344),
            ["quantization: fp8", "kvCacheDtype: fp8", "maxContext"],
        ),
        # no context at all with bf16, and only another format helps
        ("llama-3-8b", "t4", replace(EVERYTHING, quantization="bf16"), ["quantization: fp8"]),
        # neither alone, but both together
        (
            "llama-3.1-8b",
            "t4",
            replace(EVERYTHING, quantization="bf16", max_context=131072, kv_dtypes_available=("bf16",)),
            ["quantization: fp8 and maxContext"],
        ),
        # formats that the runtime lacks are never proposed
        (
            "llama-3-8b",
            "t4",
            request_of(quantization="bf16"),
            ["gpu: a card of at least 19 GiB (e.g. L4, on"],
        ),
        ("llama-3-8b", "t4", request_of(), ["gpu: a card of at least 19 GiB (e.g. L4, on"]),
        # fewer sequences need less workspace for logits
        ("llama-3-8b", "l4", request_of(max_context=8192, max_concurrent=8192), ["maxConcurrent 2048"]),
    ],
)
def test_a_refusal_names_the_remedies(spec_of, model, card, request_, advice):
    fit = on(card, spec_of(model), request_)
    assert not fit.fits
    assert fit.message.startswith(f"needs {fit.required_bytes / GIB:.1f} GiB, the {fit.device_name} has ")
    said = fit.message.split("fits with ")[1].split(", or ")
    assert len(said) == len(advice)
    assert all(text.startswith(start) for text, start in zip(said, advice, strict=True))


def test_the_designs_own_example_reads_like_it(spec_of):
    request = replace(EVERYTHING, quantization="bf16", kv_dtypes_available=("bf16",), max_context=65536)
    fit = on("l4", spec_of("llama-3.1-8b"), request)
    context = dict(fit.remedies[1].changes)["maxContext"]
    assert fit.message == (
        f"needs 23.8 GiB, the L4 has 19.7 GiB free; fits with quantization: fp8, or maxContext {context}"
    )


@pytest.mark.parametrize("card", ["t4", "b200"])
@pytest.mark.parametrize(("layers", "remedy"), [(32, "L4"), (130, "A100-80GB"), (600, "286 GiB")])
def test_a_card_without_kernels_serves_nothing_and_no_setting_helps(spec_of, card, layers, remedy):
    spec = spec_of("llama-3-8b", num_hidden_layers=layers)
    fit = on(card, spec, request_of(formats_available=(), max_context=4096))
    assert (fit.fits, fit.kv_blocks, fit.ledger.total_bytes) == (False, 0, fit.required_bytes)
    assert f"and there are no kernels for the {fit.device_name}; fits with " in fit.message
    assert [dict(remedy.changes) for remedy in fit.remedies] == [{"gpu": remedy}]


def test_a_card_is_proposed_by_what_it_would_hold_itself(spec_of, monkeypatch):
    rules = (Rule(LayerNames(("lm_head",)), None), Rule(ALL_LAYERS, _FP8))
    plain = spec_of("llama-3-8b", num_hidden_layers=130)  # 57 GiB in bf16, 30 in FP8
    stored = replace(plain, quantization=Quantization("fp8", rules))
    request = request_of(max_context=4096)
    monkeypatch.setitem(KERNEL_FORMATS, "ampere", ("bf16",))
    assert (
        on("l4", stored, request).remedies[0].text == f"gpu: a card of at least 36 GiB (e.g. L40S, {UNTRIED})"
    )
    monkeypatch.setitem(KERNEL_FORMATS, "ada", ("bf16",))
    monkeypatch.setitem(KERNEL_FORMATS, "hopper", ("bf16",))
    assert (
        on("l4", stored, request).remedies[0].text
        == f"gpu: a card of at least 65 GiB (e.g. A100-80GB, {UNTRIED})"
    )
    assert dict(on("l4", plain, request).remedies[0].changes) == {"gpu": "A100-80GB"}


@pytest.mark.parametrize(
    ("layers", "examples"),
    [(32, f"L4, {UNTRIED}"), (190, f"H100-NVL, {UNTRIED}"), (250, "H200")],  # 16, 91 and 119 GiB
)
def test_a_proposed_card_on_which_no_model_has_run_is_named_as_such(spec_of, layers, examples):
    spec = spec_of("llama-3-8b", num_hidden_layers=layers)
    fit = on("t4", spec, request_of(formats_available=(), max_context=4096))
    assert fit.message.endswith(f" (e.g. {examples})")


def test_a_model_beyond_every_card_is_refused(spec_of):
    spec = spec_of("llama-3-8b", num_hidden_layers=600)
    assert "more than any card that has kernels" in on("b300", spec).message


def test_the_refusal_on_this_machine_has_the_needed_memory(spec_of):
    fit = check(spec_of("smollm2-135m"), CPU, available_bytes=400 * MIB, device_name="this machine")
    assert fit.message == "needs 579.8 MiB, this machine has 400.0 MiB free; fits with 1 GiB of free memory"


def test_auto_quantization_rounds_nothing_and_a_refusal_proposes_the_first_format_that_fits(spec_of):
    spec = spec_of("llama-3.1-8b")
    assert on("l4", spec, EVERYTHING).quantization == "bf16"
    refused = on("t4", spec, EVERYTHING)
    assert (refused.fits, refused.quantization) == (False, "bf16")
    assert refused.remedies[0].text == "quantization: fp8"
    assert on("t4", spec, replace(EVERYTHING, quantization="int4")).quantization == "int4"


ALL_LAYERS = LayerNames((EVERY_LAYER,))
_FP8 = Scheme("fp8", "fp8", 128, 128)


@pytest.mark.parametrize(
    ("request_", "formats", "held"),
    [
        ("auto", ("bf16", "fp8_block"), "fp8_block"),
        ("fp8", ("bf16", "fp8", "fp8_block"), "fp8_block"),  # of the kind that is asked for
        ("auto", ("bf16", "fp8"), "bf16"),  # no kernels: dequantized
        ("bf16", ("bf16", "fp8_block"), "bf16"),
    ],
)
def test_a_quantized_checkpoint_is_held_as_it_is_stored(spec_of, request_, formats, held):
    spec = replace(spec_of("llama-3-8b"), quantization=Quantization("fp8", (Rule(ALL_LAYERS, _FP8),)))
    request = request_of(quantization=request_, formats_available=formats)
    assert on("l4", spec, request).quantization == held


def test_a_quantized_checkpoint_is_not_rounded_again_and_fits_as_it_is_stored(spec_of):
    spec = replace(spec_of("llama-3-8b"), quantization=Quantization("fp8", (Rule(ALL_LAYERS, _FP8),)))
    request = request_of(quantization="int4", formats_available=tuple(PACKED_FORMATS))
    with pytest.raises(RequestInvalid, match=r"int4, but the checkpoint is quantized already \(fp8\)"):
        on("l4", spec, request)
    remedies = on("t4", spec, replace(request, quantization="bf16")).remedies
    assert remedies[0].text == "quantization: auto"


def test_the_cpu_computes_in_float32_and_takes_no_more_than_it_needs(spec_of):
    fit = check(spec_of("smollm2-135m"), CPU, available_bytes=64 * GIB, device_name="this machine")
    assert (fit.quantization, fit.kv_dtype, fit.max_context) == ("float32", "float32", 8192)
    assert fit.ledger.weights_bytes == 4 * 134_515_008
    assert GIB - 16 * 46080 < fit.ledger.kv_cache_bytes <= GIB


def test_a_model_fits_to_the_byte(spec_of):
    spec, request = spec_of("llama-3-8b"), request_of(max_context=8192, max_step_tokens=512)
    needed = on("h100", spec, request).required_bytes
    exact, short = (check(spec, request, available_bytes=n, device_name="L4") for n in (needed, needed - 1))
    assert (exact.fits, exact.headroom_bytes) == (True, 0)
    assert (short.fits, short.headroom_bytes) == (False, -1)


def test_the_context_that_all_sequences_can_have_is_reported(spec_of):
    fit = on("l4", spec_of("llama-3-8b"))
    assert fit.context_at_max_concurrent == fit.kv_blocks // 32 * 16 < 8192
    assert on("h100", spec_of("llama-3-8b")).context_at_max_concurrent == 8192


def test_layers_without_a_window_bound_the_long_sequences_of_a_model_with_both():
    fit = on("h100", shape_spec("gpt-oss-20b"), request_of(max_context=131072, max_concurrent=256))
    windows, full = fit.cache.pools
    assert (windows.group.spec.window, full.group.spec.window) == (128, None)
    assert fit.max_concurrent_at_context == full.blocks // 8192 > 1
    assert fit.context_at_max_concurrent == full.blocks // 256 * 16
    (row,) = (row for row in fit.ledger.rows() if row.name == "KV cache")
    everywhere, near = (f"{pool.blocks * 16} tokens of 24576 B" for pool in (full, windows))
    assert row.explanation == f"{everywhere} and {near} in windows of 128, bf16"


def test_a_gpu_gives_all_that_is_left_to_the_kv_cache(spec_of):
    fit = on("h100", spec_of("llama-3-8b"))
    left = fit.available_bytes - fit.ledger.total_bytes
    assert 0 <= left < fit.block_tokens * fit.ledger.kv_bytes_per_token
    assert fit.max_concurrent_at_context == 32  # bounded by max_concurrent, not by memory
    assert on("l4", spec_of("llama-3-8b")).max_concurrent_at_context == 3


@pytest.mark.parametrize(("card", "at_a_time"), [("a100-80gb", 110), ("l4", 7)])
def test_a_window_lets_more_long_sequences_fit(spec_of, card, at_a_time):
    spec, request = spec_of("mistral-7b-v0.1"), request_of(max_context=32768, max_concurrent=128)
    fit = on(card, spec, request)
    # A prompt's step and its window take 769 blocks, the window of a sequence that decodes 257.
    assert fit.max_concurrent_at_context == at_a_time == 1 + (fit.kv_blocks - 769) // 257
    full = on(card, spec_of("mistral-7b-v0.1", sliding_window=None), request)
    assert (fit.kv_blocks, full.max_concurrent_at_context) == (full.kv_blocks, full.kv_blocks // 2048)
    assert full.required_bytes - fit.required_bytes == (2048 - 769) * 16 * 131072


@pytest.mark.parametrize(
    ("kv_cache_bytes", "max_context", "blocks"),
    [(2 * GIB, None, 1024), (GIB, None, 512), (GIB, 8192, 512), (10 * MIB, None, None), (GIB, 8193, None)],
)
def test_the_kv_cache_may_be_given_its_size(spec_of, kv_cache_bytes, max_context, blocks):
    spec = spec_of("llama-3.1-8b")  # 2 MiB a block
    fit = on("h100", spec, request_of(kv_cache_bytes=kv_cache_bytes, max_context=max_context))
    assert fit.fits is (blocks is not None)
    if blocks is not None:
        assert fit.kv_blocks == blocks
        assert fit.max_context == min(8192, blocks * 16) if max_context else blocks * 16


@pytest.mark.parametrize(
    ("request_", "advice"),
    [
        (request_of(kv_cache_bytes=10 * MIB), "a KV cache of 64MiB"),
        (request_of(kv_cache_bytes=GIB, max_context=16384), "maxContext 8192, or a KV cache of 2048MiB"),
    ],
)
def test_a_kv_cache_that_was_set_too_small_is_named_as_the_reason(spec_of, request_, advice):
    fit = on("h100", spec_of("llama-3.1-8b"), request_)
    assert "needs a KV cache of" in fit.message
    assert fit.message.endswith(f"fits with {advice}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_context": 8193}, "maxContext (--max-context) is 8193; this model can hold 1 to 8192 tokens"),
        ({"max_context": 0}, "maxContext (--max-context) is 0"),
        ({"max_concurrent": 0}, "maxConcurrent (--max-concurrent) is 0; it must be at least 1"),
        ({"block_tokens": -1}, "blockTokens (--block-tokens) is -1"),
        ({"max_step_tokens": 0}, "maxStepTokens (--max-step-tokens) is 0"),
        (
            {"quantization": "fp8"},
            "(--quantization): fp8 cannot be served on this device yet; available: bf16",
        ),
        ({"quantization": "q4_k_m"}, "q4_k_m"),
        (
            {"head_quantization": "fp8"},
            "headQuantization (--head-quantization) is fp8, but this device has no",
        ),
        ({"kv_dtype": "fp8"}, "kvCacheDtype (--kv-cache-dtype): fp8 cannot be served on this device yet"),
        ({"kv_bf16_layers": 1}, "kvCacheBf16Layers (--kv-cache-bf16-layers) is 1, and all layers are bf16"),
        ({"kv_dtypes_available": ()}, "so no format can be served on it"),
    ],
)
def test_a_request_that_memory_cannot_satisfy_is_refused(spec_of, change, said):
    with pytest.raises(RequestInvalid) as caught:
        on("h100", spec_of("smollm2-135m"), replace(request_of(), **change))
    assert said in caught.value.message


def test_a_step_shorter_than_a_chunk_of_the_recurrence_is_refused_in_deterministic_mode(spec_of):
    hybrid, settings = shape_spec("qwen3.5-9b"), {"deterministic": True, "max_step_tokens": 48}
    for change in ({"max_step_tokens": 64}, {"deterministic": False}):
        on("h100", hybrid, replace(request_of(), **(settings | change)))
    with pytest.raises(
        RequestInvalid, match=r"maxStepTokens \(--max-step-tokens\) is 48; .* chunks of 64 tok"
    ):
        on("h100", hybrid, replace(request_of(), **settings))
    on("h100", spec_of("smollm2-135m"), replace(request_of(), **settings))


def test_a_head_that_is_the_embedding_table_stays_bf16_and_that_is_said(spec_of):
    change = {"head_quantization": "fp8", "formats_available": ("bf16", "fp8")}
    spec = spec_of("smollm2-135m")
    fit = on("h100", spec, replace(request_of(), **change))
    same = on("h100", spec, request_of())
    note = "; the head is the embedding table and stays bf16"
    assert fit.ledger.weight_description == same.ledger.weight_description + note
    assert fit.required_bytes == same.required_bytes


def test_a_checkpoint_that_lacks_tensors_is_refused_before_the_arithmetic(spec_of):
    empty = TensorIndex((Header("model.safetensors", (), 16),))
    with pytest.raises(TensorsMismatch):
        check(spec_of("smollm2-135m"), CPU, available_bytes=GIB, device_name="this machine", tensors=empty)


def test_state_shows_the_ledger_with_the_keys_of_the_contracts_page(spec_of):
    fit = on("l4", spec_of("llama-3-8b"), replace(EVERYTHING, quantization="fp8"))
    shown = fit.to_dict()
    parts = (
        "weightsBytes",
        "kvCacheBytes",
        "stateBytes",
        "snapshotBytes",
        "workspaceBytes",
        "graphsBytes",
        "contextBytes",
        "loadingBytes",
    )
    assert sum(shown[part] for part in parts) == shown["totalBytes"]  # scales are part of the weights
    assert shown["headroomBytes"] == fit.available_bytes - fit.required_bytes > 0
    assert (shown["maxContext"], shown["maxConcurrent"], shown["fits"]) == (8192, 32, True)
    assert list(shown)[8:] == [
        "totalBytes",
        "availableBytes",
        "kvBytesPerToken",
        "maxContext",
        "maxConcurrent",
        "maxStepTokens",
        "maxConcurrentAtContext",
        "headroomBytes",
        "fits",
        "message",
        "weights",
    ]
