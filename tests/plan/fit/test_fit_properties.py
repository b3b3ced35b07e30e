"""Properties of every verdict: it agrees with the ledger; its remedies work, and are the smallest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.verdict import Fit, FitRequest, check
from wisp_plan.hardware.gpus import find_card, proposable_cards, usable_bytes
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.units import GIB, MIB
from wisp_plan.weights.held import ROUNDED

TINY = dense_decoder(
    "LlamaForCausalLM",
    "llama",
    layers=4,
    hidden=256,
    inner=512,
    vocab=1000,
    max_context=20_000,
    attention=AttentionSpec(4, 2, 64, RopeSpec(rotary_size=64)),
    norm_eps=1e-6,
)


def quantized(scheme: Scheme) -> ModelSpec:
    rules = (Rule(LayerNames(("lm_head", "model.layers.3")), None), Rule(LayerNames((EVERY_LAYER,)), scheme))
    return replace(TINY, quantization=Quantization(scheme.arrangement, rules))


SPECS = (
    TINY,
    quantized(Scheme("fp8", "fp8", 128, 128)),
    quantized(Scheme("gptq", "int4", 1, 64, is_packed=True, has_zero_points=True)),
)
KV_DTYPES = ("bf16", "fp8", "nvfp4")


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelSpec, FitRequest]:
    """Generate a model, quantized or not, and a request that is not refused."""
    spec = draw(st.sampled_from(SPECS))
    formats = ("bf16", *draw(st.lists(st.sampled_from(list(PACKED_FORMATS)), unique=True)))
    asked = ["auto", "bf16", *(name for name in ROUNDED if name in formats and spec is TINY)]
    kv_dtype = draw(st.sampled_from(["auto", *KV_DTYPES]))
    device = draw(st.sampled_from(["cuda", "cpu"]))
    is_quantized = kv_dtype not in ("auto", "bf16")
    request = FitRequest(
        max_context=draw(st.none() | st.integers(1, 20_000)),
        max_concurrent=draw(st.none() | st.integers(1, 40)),
        quantization=draw(st.sampled_from(asked)),
        head_quantization=draw(st.sampled_from(["bf16", *(["fp8"] if "fp8" in formats else [])])),
        kv_dtype=kv_dtype,
        block_tokens=draw(st.integers(1, 700)) * (16 if is_quantized else 1),
        max_step_tokens=draw(st.none() | st.integers(1, 2048)),
        device=device,
        kv_cache_bytes=draw(st.none() | st.integers(1, 64 * MIB)),
        context_bytes=draw(st.none() | st.integers(0, 64 * MIB)),
        formats_available=formats,
        kv_dtypes_available=KV_DTYPES,
    )
    return spec, request


memory = st.integers(0, 700 * MIB)
shortage = st.integers(1, 6 * MIB) | st.integers(1, 700 * MIB)
"""Bytes below the least that serves: weights in 4 bits save 3.4 MiB of TINY's."""


def short(case: tuple[ModelSpec, FitRequest], shortage_bytes: int) -> tuple[Fit, int]:
    """Return the verdict on a memory that is too small, and that memory."""
    spec, request = case
    available_bytes = max(0, tiny(request, 0, spec).required_bytes - shortage_bytes)
    return tiny(request, available_bytes, spec), available_bytes


def tiny(request: FitRequest, available_bytes: int, spec: ModelSpec = TINY) -> Fit:
    return check(spec, request, available_bytes=available_bytes, device_name="L4")


@given(cases(), memory)
def test_the_verdict_agrees_with_the_ledger(case, available_bytes):
    spec, request = case
    fit = tiny(request, available_bytes, spec)
    if fit.fits:
        assert fit.required_bytes <= fit.ledger.total_bytes <= available_bytes
        assert fit.kv_blocks * request.block_tokens >= fit.max_context
        assert fit.max_concurrent_at_context >= 1
        assert request.kv_cache_bytes is None or fit.ledger.kv_cache_bytes <= request.kv_cache_bytes
        assert not fit.remedies
    else:
        limit = request.kv_cache_bytes
        too_much_cache = limit is not None and fit.ledger.kv_cache_bytes > limit
        assert fit.ledger.total_bytes > available_bytes or too_much_cache
        assert fit.kv_blocks == fit.max_concurrent_at_context == fit.context_at_max_concurrent == 0
        assert fit.remedies
    assert fit.max_context == request.max_context or request.max_context is None


@given(cases(), shortage)
def test_every_message_of_a_refusal_ends_in_its_remedies(case, shortage_bytes):
    fit, _ = short(case, shortage_bytes)
    assert not fit.fits
    said = fit.message.rpartition("fits with ")[2]
    assert said == ", or ".join(remedy.text for remedy in fit.remedies)


FIELDS = {
    "quantization": ("quantization", str),
    "kvCacheDtype": ("kv_dtype", str),
    "maxContext": ("max_context", int),
    "maxConcurrent": ("max_concurrent", int),
    "kvCacheMemory": ("kv_cache_bytes", lambda text: int(text.removesuffix("MiB")) * MIB),
}


def applied(request: FitRequest, changes: dict[str, str]) -> FitRequest:
    fields = {FIELDS[name][0]: FIELDS[name][1](value) for name, value in changes.items() if name in FIELDS}
    return replace(request, **fields)  # type: ignore[arg-type]


def fits(spec: ModelSpec, request: FitRequest, available_bytes: int) -> bool:
    try:
        return tiny(request, available_bytes, spec).fits
    except RequestInvalid:
        return False


@given(cases(), shortage)
def test_every_remedy_that_is_proposed_works(case, shortage_bytes):
    spec, request = case
    fit, available_bytes = short(case, shortage_bytes)
    for remedy in fit.remedies:
        changes = dict(remedy.changes)
        if "memory" in changes or changes.get("gpu", "").endswith(" GiB"):
            continue  # no card has kernels for these settings
        changed, available = applied(request, changes), available_bytes
        if name := changes.get("gpu"):
            card = find_card(name)
            changed = replace(changed, context_bytes=None, formats_available=kernel_formats(card.hardware))
            available = usable_bytes(card)
        assert fits(spec, changed, available), remedy


CODES_FOR_A_TOKEN_MORE = FitRequest(max_context=4772, block_tokens=1, max_step_tokens=1, device="cpu")


@given(cases(), shortage)
@example((SPECS[1], CODES_FOR_A_TOKEN_MORE), 1)  # auto stays at 4,096 tokens, with float32 weights
def test_no_remedy_is_larger_than_it_must_be(case, shortage_bytes):
    spec, request = case
    fit, available_bytes = short(case, shortage_bytes)
    request = replace(request, max_concurrent=fit.max_concurrent)
    for remedy in fit.remedies:
        changes = dict(remedy.changes)
        for smaller in smaller_changes(spec, request, changes):
            assert not fits(spec, applied(request, smaller), available_bytes), (remedy, smaller)


def smaller_changes(spec: ModelSpec, request: FitRequest, changes: dict[str, str]):
    """Yield what would change less: one change of two, a more precise format, a block or sequences more."""
    if len(changes) > 1:
        yield from ({name: value} for name, value in changes.items())
    for name, value in changes.items():
        match name:
            case "quantization" if value in ROUNDED:
                available = [other for other in ROUNDED if other in request.formats_available]
                better = [(name, other) for other in available[: available.index(value)]]
            case "kvCacheDtype":
                names = [other for other in KV_FORMATS if other in KV_DTYPES]
                better = [(name, other) for other in names[: names.index(value)]]
            case "maxContext":
                longer = (int(value) // request.block_tokens + 1) * request.block_tokens
                better = [(name, str(longer))] if longer < (request.max_context or 0) else []
            case "maxConcurrent":
                better = [(name, str(2 * int(value)))] if 2 * int(value) < request.sequences else []
            case _:
                better = []
        yield from ({**changes, key: other} for key, other in better)


@given(cases(), shortage)
def test_the_proposed_card_is_the_smallest_with_kernels_on_which_it_fits(case, shortage_bytes):
    spec, request = case
    changes = [dict(remedy.changes) for remedy in short(case, shortage_bytes)[0].remedies]
    proposed = next((each for each in changes if "gpu" in each), None)
    if proposed is None:
        return
    for card in proposable_cards():
        if card.name == proposed["gpu"]:
            break
        elsewhere = replace(
            applied(request, proposed), context_bytes=None, formats_available=kernel_formats(card.hardware)
        )
        assert not fits(spec, elsewhere, usable_bytes(card))


@given(cases(), memory, st.integers(0, 200 * MIB))
def test_more_memory_never_makes_a_model_fit_worse(case, available_bytes, more_bytes):
    spec, request = case
    less, more = (tiny(request, size, spec) for size in (available_bytes, available_bytes + more_bytes))
    assert more.fits or not less.fits
    is_fixed = request.max_step_tokens is not None and request.max_concurrent is not None
    is_fixed &= less.quantization == more.quantization
    if less.fits and is_fixed:  # auto may prefer wider steps, more sequences or float32 to a longer context
        assert more.max_context >= less.max_context


@given(cases(), st.integers(0, 45 * MIB))
def test_an_automatic_context_is_the_longest_that_fits(case, spare_bytes):
    spec, request = case
    request = replace(request, max_context=None, max_concurrent=request.max_concurrent or 1)
    shortest = tiny(replace(request, max_context=512, kv_cache_bytes=None), GIB, spec).required_bytes
    available_bytes = shortest + spare_bytes
    fit = tiny(request, available_bytes, spec)
    assert fit.fits or request.kv_cache_bytes is not None
    if fit.fits and fit.max_context < spec.max_context:
        longer = (fit.max_context // request.block_tokens + 1) * request.block_tokens
        request = replace(
            request, max_context=min(longer, spec.max_context), max_step_tokens=fit.max_step_tokens
        )
        longest = tiny(request, available_bytes, spec)
        assert not longest.fits or longest.quantization != fit.quantization  # codes leave more
