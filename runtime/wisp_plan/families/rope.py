"""Read the rotary position embedding out of a ``config.json``, in its old and its new spelling.

Old (transformers 4): ``rope_theta`` beside ``rope_scaling: null | {rope_type | type, factor, ...}``.
New (transformers 5): everything in ``rope_parameters``, ``rope_theta`` included. Where both are given,
``rope_parameters`` wins and ``rope_theta`` beside it is its fallback.
"""

from __future__ import annotations

import math

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.reader import ConfigReader
from wisp_plan.json_object import shorten
from wisp_plan.spec.rope import RopeSpec

DEFAULT_THETA = 10000.0
SUPPORTED = ("default", "linear", "llama3", "yarn")
_MAX_MSCALE = 100.0


def parse_rope(config: ConfigReader, head_size: int, rotary_share: float = 1.0) -> RopeSpec:
    """Return the rotary embedding of a model with heads of ``head_size`` channels.

    Args:
        rotary_share: share of them that RoPE is applied to, unless the config has one.

    Raises:
        ConfigInvalid: an unsupported kind (dynamic, longrope, ...), or an impossible number.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling")
    scaling = section or ConfigReader({}, "rope_scaling.")
    theta = scaling.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    rotary_size = _rotary_size(config, scaling, head_size, rotary_share)
    kind = _kind(scaling)
    if kind == "linear":
        return RopeSpec(theta, "linear", _factor(scaling), rotary_size=rotary_size)
    if kind == "llama3":
        return _llama3(scaling, theta, rotary_size)
    if kind == "yarn":
        return _yarn(config, scaling, theta, rotary_size)
    return RopeSpec(theta, rotary_size=rotary_size)


def _kind(scaling: ConfigReader) -> str:
    key = "type" if scaling.has("type") and not scaling.has("rope_type") else "rope_type"
    if not scaling.values or (not scaling.has(key) and scaling.has("rope_theta")):
        return "default"
    kind = scaling.text(key)
    if kind not in SUPPORTED:
        raise ConfigInvalid(
            f"config.json: {scaling.path}{key} is '{shorten(kind)}'; supported: {', '.join(SUPPORTED)}. "
            "Choose a model without this scaling of positions, or remove it to serve the context it was "
            "trained for (set max_position_embeddings to that).",
            key=scaling.path + key,
        )
    return kind


def _llama3(scaling: ConfigReader, theta: float, rotary_size: int) -> RopeSpec:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.bad("low_freq_factor", f"a number below high_freq_factor ({high:g})")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=_factor(scaling),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_context=scaling.integer("original_max_position_embeddings"),
        rotary_size=rotary_size,
    )


def _yarn(config: ConfigReader, scaling: ConfigReader, theta: float, rotary_size: int) -> RopeSpec:
    """Read YaRN's keys; the trained context may stand beside the section, or be the whole one."""
    if theta <= 1:
        raise scaling.bad("rope_theta", f"a base above 1 (it is {theta:g}), as yarn takes its logarithm")
    original = config if not scaling.has("original_max_position_embeddings") else scaling
    max_context = config.integer("max_position_embeddings")
    original_max_context = original.integer("original_max_position_embeddings", max_context)
    fast, slow = scaling.number("beta_fast", 32.0), scaling.number("beta_slow", 1.0)
    if slow > fast:
        raise scaling.bad("beta_slow", f"a number of at most beta_fast ({fast:g})")
    absent = None if scaling.values.get("factor") is not None else max_context / original_max_context
    factor = _factor(scaling) if absent is None else max(1.0, absent)
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_context=original_max_context,
        beta_fast=fast,
        beta_slow=slow,
        is_truncated=scaling.flag("truncate", True),
        amplitude=scaling.number("attention_factor", _yarn_amplitude(scaling, factor)),
        rotary_size=rotary_size,
    )


def _yarn_amplitude(scaling: ConfigReader, factor: float) -> float:
    """Return the factor of cosines and sines of a context that is ``factor`` times the trained one.

    Source: Peng et al. 2023, arXiv:2309.00071, eq. 22; ``mscale`` and ``mscale_all_dim`` as in DeepSeek-V2's
    ``modeling_deepseek.py``: the share of the scores' scale that cosines and sines have.
    """
    parts = [scaling.number_within(key, 0.0, _MAX_MSCALE) for key in ("mscale", "mscale_all_dim")]
    over, under = (0.1 * part * math.log(factor) + 1.0 if part else 0.0 for part in parts)
    return over / under if over and under else 0.1 * math.log(factor) + 1.0


def _factor(scaling: ConfigReader) -> float:
    factor = scaling.number("factor")
    if factor < 1:
        raise scaling.bad("factor", "a number of at least 1")
    return factor


def _rotary_size(config: ConfigReader, scaling: ConfigReader, head_size: int, usual: float) -> int:
    reader = scaling if scaling.has("partial_rotary_factor") else config
    share = reader.number("partial_rotary_factor", usual)
    size = int(head_size * share)
    if share > 1 or size < 2 or size % 2:
        raise reader.bad(
            "partial_rotary_factor", f"a share of the head's {head_size} channels that is even, at most 1"
        )
    return size
