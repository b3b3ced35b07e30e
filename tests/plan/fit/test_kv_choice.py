"""KV formats in the verdict: proposed where they fit, refused where they cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.hardware.gpus import find_card, usable_bytes
from wisp_plan.units import GIB


def on(card, spec, request):
    return check(spec, request, available_bytes=usable_bytes(find_card(card)), device_name=card)


@pytest.mark.parametrize(
    ("kv_dtype", "gib", "expect"),
    [
        ("auto", 4.2, "fp8"),  # of formats of equal bytes the first
        ("auto", 2.4, "nvfp4"),
        ("auto", 2.0, "turbo3"),
        ("fp8", 2.0, "turbo3"),
        ("turbo4", 2.0, "turbo3"),
    ],
)
def test_the_largest_kv_format_that_fits_is_proposed(spec_of, kv_dtype, gib, expect):
    request = FitRequest(
        max_concurrent=1, max_context=65536, kv_cache_bytes=int(gib * GIB), kv_dtype=kv_dtype
    )
    fit = on("h100", spec_of("llama-3.1-8b"), request)
    alone = [remedy.changes[0] for remedy in fit.remedies if len(remedy.changes) == 1]
    assert [value for field, value in alone if field == "kvCacheDtype"] == [expect]


@pytest.mark.parametrize(
    ("device", "change", "said"),
    [
        ("cuda", {"block_tokens": 8}, "blockTokens (--block-tokens) is 8; with turbo4 keys and values"),
        ("cuda", {"kv_bf16_layers": 15}, "is 15; of this model's 30 layers 0 to 14 at either end"),
        ("cpu", {"kv_bf16_layers": -1}, "is -1; of this model's 30 layers"),
    ],
)
def test_what_a_kv_format_cannot_do_is_refused(spec_of, device, change, said):
    request = FitRequest(max_concurrent=1, kv_dtype="turbo4", device=device)
    with pytest.raises(RequestInvalid) as caught:
        on("h100", spec_of("smollm2-135m"), replace(request, **change))
    assert said in caught.value.message
