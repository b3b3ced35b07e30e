"""YaRN's keys of a config.json: defaults, other places, and values that are refused."""

from __future__ import annotations

import math

import pytest
from spec_changes import attention_of

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config
from wisp_plan.spec.rope import RopeSpec

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
AMPLITUDE = 0.1 * math.log(4) + 1


def yarn(**changes):
    return {"rope_scaling": {key: value for key, value in (YARN | changes).items() if value is not ...}}


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        (yarn(), {}),
        ({"rope_scaling": {**YARN, "rope_type": None, "type": "yarn"}}, None),  # null is no kind
        ({"rope_parameters": {**YARN, "rope_theta": 1e6}}, {"theta": 1e6}),
        (yarn(truncate=False), {"is_truncated": False}),
        (yarn(beta_fast=16, beta_slow=2), {"beta_fast": 16.0, "beta_slow": 2.0}),
        (yarn(beta_fast=None, attention_factor=None), {}),
        (yarn(attention_factor=1.25), {"amplitude": 1.25}),
        (yarn(attention_factor=1.25, mscale=2.0, mscale_all_dim=1.0), {"amplitude": 1.25}),
        (yarn(mscale=1.0, mscale_all_dim=1.0), {"amplitude": 1.0}),
        (yarn(mscale=1.0), {}),  # one of both is not enough
        (yarn(mscale=0, mscale_all_dim=1.0), {}),
        # without a factor, the context over the trained one
        (yarn(factor=None), {"factor": 4.0}),
        # without a trained context, that beside the section, else the whole context
        (
            yarn(original_max_position_embeddings=...) | {"original_max_position_embeddings": 1024},
            {"original_max_context": 1024},
        ),
        (yarn(original_max_position_embeddings=...), {"original_max_context": 8192}),
        (yarn() | {"partial_rotary_factor": 0.5}, {"rotary_size": 64}),
    ],
)
def test_yarn_is_read_with_transformers_defaults(spec_of, config_of, changes, expect):
    if expect is None:
        with pytest.raises(ConfigInvalid):
            parse_config(config_of("llama-3-8b", **changes))
        return
    usual = RopeSpec(500000.0, "yarn", 4.0, original_max_context=2048, amplitude=AMPLITUDE, rotary_size=128)
    rope = attention_of(spec_of("llama-3-8b", **changes)).rope
    assert rope == RopeSpec(**{name: expect.get(name, getattr(usual, name)) for name in usual.__slots__})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"factor": 0.5}, "factor"),
        ({"factor": "4"}, "factor"),
        ({"truncate": "no"}, "truncate"),
        ({"attention_factor": 0}, "attention_factor"),
        ({"beta_fast": 1, "beta_slow": 2}, "beta_slow"),
        ({"mscale": -1.0}, "mscale"),
        ({"mscale_all_dim": math.inf}, "mscale_all_dim"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({"rope_theta": 1}, "rope_theta"),  # whose logarithm divides
    ],
)
def test_a_number_that_yarn_cannot_have_is_refused(config_of, changes, key):
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(config_of("llama-3-8b", **yarn(**changes)))
    assert caught.value.key == f"rope_scaling.{key}"
