"""``maxConcurrent: auto``: sequences in one step, from the memory that is left for their KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_plan.fit.concurrency import AUTO_SEQUENCE_TOKENS
from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.hardware.gpus import find_card, usable_bytes
from wisp_plan.presets import shape_spec
from wisp_plan.units import GIB

ABSURD = 1 << 22
AUTO, ON_CPU = FitRequest(), FitRequest(device="cpu")
MXFP4 = FitRequest(formats_available=("bf16", "mxfp4"))


def fit_of(shape: str, where: str | int, request: FitRequest = AUTO):
    if isinstance(where, int):
        return check(shape_spec(shape), request, available_bytes=where, device_name="this machine")
    card = find_card(where)
    return check(shape_spec(shape), request, available_bytes=usable_bytes(card), device_name=card.name)


@pytest.mark.parametrize(
    ("shape", "where", "request_", "sequences"),
    [
        ("llama-3-8b", "h200", AUTO, 256),  # 109 of the full context, 256 of shorter ones
        ("llama-3-8b", "l4", AUTO, 24),  # 3.7 GiB for KV, 128 MiB a sequence of 1,024 tokens
        ("qwen3-0.6b", "h100", AUTO, 256),
        ("smollm2-1.7b", "l4", AUTO, 64),
        ("llama-3-8b", "h200", replace(AUTO, max_auto_concurrent=64), 64),  # deterministic mode
        ("llama-3-8b", "h200", replace(AUTO, max_step_tokens=40), 40),  # a step holds a token of each
        ("llama-3-8b", "h200", replace(AUTO, max_concurrent=7), 7),
        ("llama-3-8b", "h200", replace(AUTO, kv_cache_bytes=4 * GIB), 32),
        ("llama-3-8b", "h200", replace(AUTO, kv_cache_bytes=GIB), 8),  # requests are short then
        ("qwen2.5-0.5b", 32 * GIB, ON_CPU, 32),
        ("smollm2-135m", 4 * GIB, ON_CPU, 16),
    ],
    ids=str,
)
def test_auto_is_the_most_that_have_a_thousand_tokens_each(shape, where, request_, sequences):
    fit = fit_of(shape, where, request_)
    assert fit.fits
    assert fit.max_concurrent == sequences == fit.to_dict()["maxConcurrent"]
    if sequences > 8:
        assert fit.context_at_max_concurrent >= min(fit.max_context, AUTO_SEQUENCE_TOKENS)


def test_layers_with_a_window_are_counted_as_sequences_that_decode():
    """Their cache has blocks of all windows, and of two steps of prompts, not of a step for each sequence."""
    spec = shape_spec("toy")
    first = spec.layers[0]
    narrow = replace(first, mixer=replace(first.mixer, window=64))
    mixed = replace(spec, layers=(first, narrow) * (len(spec.layers) // 2))
    fit = check(mixed, ON_CPU, available_bytes=16 * GIB, device_name="this machine")
    assert fit.max_concurrent == 32


def test_sequences_give_way_before_a_model_is_refused():
    one = fit_of("llama-3-8b", "h200", replace(AUTO, max_concurrent=1, max_step_tokens=8, max_context=1024))
    least = replace(AUTO, max_step_tokens=8, max_context=1024)
    assert fit_of("llama-3-8b", one.required_bytes, least).max_concurrent == 1
    short = fit_of("llama-3-8b", one.required_bytes - 1, least)
    assert (short.fits, short.max_concurrent, short.required_bytes) == (False, 1, one.required_bytes)
    assert not any("maxConcurrent" in dict(remedy.changes) for remedy in short.remedies)


@pytest.mark.parametrize("memory_bytes", [4 * GIB, 16 * GIB, 128 * GIB])
def test_an_absurd_context_of_a_config_leaves_the_cpu_most_of_its_memory(memory_bytes):
    """Before, nine tenths of the memory went to the KV cache of one sequence."""
    spec = replace(shape_spec("smollm2-135m"), max_context=ABSURD)
    fit = check(spec, ON_CPU, available_bytes=memory_bytes, device_name="this machine")
    assert fit.ledger.kv_cache_bytes <= max(GIB, memory_bytes // 4)
    assert fit.fits
    assert f"of the model's {ABSURD}, more than a quarter of the memory holds" in fit.message
    named = check(
        spec, replace(ON_CPU, max_context=fit.max_context * 2), available_bytes=memory_bytes, device_name="x"
    )
    assert named.max_context == fit.max_context * 2  # named by the user, it may take what there is


@pytest.mark.parametrize(
    ("shape", "where", "request_", "context", "sequences", "step"),
    [
        ("nemotron-3-nano-30b-a3b", "h100", AUTO, 262144, 64, 8192),  # 255,664 with states of 96
        ("gpt-oss-120b", "h100", MXFP4, 131072, 64, 4096),  # 108,928 of 96 in steps of 8,192
        ("qwen3.5-9b", "a100-40gb", AUTO, 262144, 64, 8192),  # 134,864 with states of 128
        ("qwen3.8-27b", "h100", AUTO, 74592, 48, 8192),  # a full one would leave 8: less than half
        ("qwen3.8-27b", "h100", replace(AUTO, max_context=262144), 262144, 8, 8192),
        ("qwen3.8-27b", "h100", replace(AUTO, max_concurrent=8), 262144, 8, 8192),
    ],
)
def test_a_full_context_outranks_wide_steps_and_half_of_the_sequences(
    shape, where, request_, context, sequences, step
):
    fit = fit_of(shape, where, request_)
    assert (fit.max_context, fit.max_concurrent, fit.max_step_tokens) == (context, sequences, step)


def test_a_shortened_context_names_the_setting_that_gives_the_models_own():
    fit = fit_of("qwen3.8-27b", "h100")
    fits = "maxContext 262144 fits too, 8 at a time in steps of 8192 tokens"
    assert f"for a context of 74592 tokens (of the model's 262144; {fits})" in fit.message
    assert fit_of("qwen3.8-27b", "h100", replace(AUTO, max_context=262144)).max_concurrent == 8
    assert "of the model's 40960, which would need more)" in fit_of("qwen3-8b", "l4").message


def test_a_context_that_states_of_many_shorten_names_that_of_one():
    fit = fit_of("qwen3.5-9b", "l4")
    alone = fit_of("qwen3.5-9b", "l4", replace(AUTO, max_concurrent=1))
    gives = f"which would need more; maxConcurrent 1 gives {alone.max_context})"
    assert gives in fit.message, fit.message
    assert alone.max_context > 1.25 * fit.max_context


def test_a_need_with_room_for_many_names_that_of_one():
    """Recurrent states and their snapshots of 48 sequences are 14 GiB of the need."""
    fit = fit_of("qwen3.8-27b", "h100", replace(AUTO, max_context=8192))
    alone = fit_of("qwen3.8-27b", "h100", replace(AUTO, max_context=8192, max_concurrent=1))
    least = f"and room for {fit.max_concurrent} at a time ({alone.required_bytes / GIB:.1f} GiB with"
    assert f"{least} maxConcurrent 1)" in fit.message
    assert fit.required_bytes - alone.required_bytes > 10 * GIB
    assert "room for" not in alone.message + fit_of("llama-3-8b", "l4").message
