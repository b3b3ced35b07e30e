"""Default width of a step, and its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.memory.ledger import workspace_bytes
from wisp_plan.memory.limits import step_sizes
from wisp_plan.presets import shape_spec
from wisp_plan.units import GIB, MIB

# Its workspace is 761 MiB with steps of 8192 tokens, 441 with 4096, 281, 201, and 161 with 512.
LLAMA = shape_spec("llama-3-8b")
ALL = (8192, 4096, 2048, 1024, 512)
AMPLE = 64 * GIB


@pytest.mark.parametrize(
    ("settings", "available_bytes", "sizes"),
    [
        ({}, AMPLE, ALL),
        ({}, 16 * 762 * MIB, ALL),
        ({}, 16 * 761 * MIB, ALL[1:]),
        ({}, 16 * 441 * MIB, ALL[2:]),
        ({}, 0, (512,)),  # something must be tried
        ({"max_concurrent": 600}, AMPLE, (8192, 4096, 2048, 1024, 600)),  # a token of each sequence
        ({"max_concurrent": 600}, 0, (600,)),
        ({"max_concurrent": 9000}, AMPLE, (9000,)),
        # One sequence of 1500 tokens fills no step of 4096; 32 of them fill every step.
        ({"max_concurrent": 1, "max_context": 1500}, AMPLE, (2048, 1024, 512)),
        ({"max_concurrent": 32, "max_context": 1500}, AMPLE, ALL),
        ({"max_concurrent": 3, "max_context": 100}, AMPLE, (512,)),
        ({"max_concurrent": 1, "max_context": 100}, AMPLE, (128,)),
        ({"max_concurrent": 1, "max_context": 1}, AMPLE, (1,)),
        ({"max_concurrent": 1}, AMPLE, ALL),  # the model's 8192
        ({"max_step_tokens": 3000}, AMPLE, (3000,)),  # what was asked for is taken as it is
        ({"max_step_tokens": 1 << 20}, 0, (1 << 20,)),
        ({"device": "cpu"}, AMPLE, (512,)),
        ({"device": "cpu", "max_concurrent": 600}, AMPLE, (600,)),
        ({"device": "cpu", "max_concurrent": 1, "max_context": 100}, AMPLE, (512,)),
        ({"device": "cpu", "max_step_tokens": 64}, AMPLE, (64,)),
    ],
)
def test_a_step_is_as_wide_as_a_sixteenth_of_the_memory_allows(settings, available_bytes, sizes):
    assert step_sizes(LLAMA, FitRequest(**({"max_concurrent": 32} | settings)), available_bytes) == sizes


@pytest.mark.parametrize(
    ("shape", "deterministic", "step"),
    [("qwen3.8-27b", True, 576), ("qwen3.8-27b", False, 512), ("llama-3-8b", True, 512)],
)
def test_a_step_holds_a_chunk_of_a_prompt_that_only_multiples_of_it_divide(shape, deterministic, step):
    request = FitRequest(max_concurrent=8, block_tokens=144, deterministic=deterministic)
    assert step_sizes(shape_spec(shape), request, 0) == (step,)


def fit_of(available_bytes: int, **settings: object):
    request = FitRequest(**({"max_concurrent": 32} | settings))  # type: ignore[arg-type]
    return check(LLAMA, request, available_bytes=available_bytes, device_name="L4")


def least(step_tokens: int, **settings: object) -> int:
    """The bytes that serve with steps of so many tokens."""
    return fit_of(AMPLE, max_step_tokens=step_tokens, **settings).required_bytes


@pytest.mark.parametrize("step_tokens", ALL)
def test_a_narrower_step_is_taken_before_a_model_is_refused(step_tokens):
    needed = least(step_tokens, max_context=8192)
    fit = fit_of(needed, max_context=8192)
    assert (fit.fits, fit.max_step_tokens, fit.headroom_bytes) == (True, step_tokens, 0)
    assert fit.ledger.options.max_step_tokens == fit.to_dict()["maxStepTokens"] == step_tokens


def test_the_refusal_has_the_memory_of_the_narrowest_step():
    needed = least(512, max_context=8192)
    fit = fit_of(needed - 1, max_context=8192)
    assert (fit.fits, fit.max_step_tokens, fit.required_bytes) == (False, 512, needed)


@pytest.mark.parametrize(
    ("spare_tokens", "step_tokens", "max_context"),
    [
        (0, 8192, range(4096, 4097)),
        (-16, 4096, range(6000, 7000)),  # a context below 4096 tokens is worse than a narrower step
        (160, 8192, range(4200, 4300)),
        (3000, 4096, range(8192, 8193)),  # the model's own, instead of 7,096
    ],
)
def test_an_automatic_context_gives_way_to_wide_steps_down_to_4096_tokens_unless_it_can_be_the_models(
    spare_tokens, step_tokens, max_context
):
    available_bytes = least(8192, max_context=4096) + spare_tokens * 131072
    fit = fit_of(available_bytes)
    assert fit.max_step_tokens == step_tokens
    assert fit.max_context in max_context


def test_a_format_is_kept_at_the_price_of_narrower_steps():
    formats = {"formats_available": ("bf16", "int4"), "max_context": 8192}
    fit = fit_of(least(512, max_context=8192), **formats)
    assert (fit.quantization, fit.max_step_tokens) == ("bf16", 512)


def test_a_small_kv_cache_that_was_asked_for_does_not_make_steps_narrow():
    fit = fit_of(AMPLE, kv_cache_bytes=128 * MIB)
    assert (fit.fits, fit.max_context, fit.max_step_tokens) == (True, 1024, 8192)


@given(
    st.integers(1, 2000),
    st.none() | st.integers(1, 8192),
    st.integers(15 * GIB, 24 * GIB),
    st.sampled_from(["cuda", "cpu"]),
)
def test_a_fit_with_any_step_width_is_a_fit_with_auto(sequences, context, available_bytes, device):
    request = FitRequest(max_concurrent=sequences, max_context=context, device=device)
    available_bytes *= 2 if device == "cpu" else 1
    narrow = replace(request, max_step_tokens=max(512, sequences))
    auto, fixed = (
        check(LLAMA, wish, available_bytes=available_bytes, device_name="L4") for wish in (request, narrow)
    )
    assert auto.fits or not fixed.fits
    assert auto.max_step_tokens >= sequences
    sizes = step_sizes(LLAMA, request, available_bytes)
    if len(sizes) > 1:
        options = auto.ledger.options
        assert workspace_bytes(LLAMA, replace(options, max_context=context or 8192)) * 16 <= available_bytes
