"""The formats that a user can name are the same everywhere: plan, command lines, resource."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from wisp_operator.api import Runtime
from wisp_plan.kv_formats.layers import SERVED_KV_FORMATS
from wisp_plan.weights.held import AUTO, BF16, FP8, ROUNDED
from wisp_runtime import config
from wisp_runtime.quantize.formats import TARGETS
from wisp_runtime.quantize.quantizing import DEFAULT_METHODS

RESOURCE = get_type_hints(Runtime)


def test_weights_are_rounded_at_load_to_what_quantize_writes():
    assert set(TARGETS) == set(DEFAULT_METHODS) == set(ROUNDED)


@pytest.mark.parametrize(
    ("field", "served", "names"),
    [
        ("quantization", config.Quantization, (AUTO, BF16, *ROUNDED)),
        ("head_quantization", config.HeadQuantization, (BF16, FP8)),
        (
            "kv_cache_dtype",
            config.KVCacheDtype,
            (AUTO, *SERVED_KV_FORMATS["cpu"], *SERVED_KV_FORMATS["cuda"]),
        ),
    ],
)
def test_serve_and_the_resource_take_the_names_of_the_plan(field, served, names):
    assert set(get_args(served)) == set(get_args(RESOURCE[field])) == set(names)
