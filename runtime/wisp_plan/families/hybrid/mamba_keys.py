"""Keys of Mamba-2 in a ``config.json``, as families with several spellings share them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.mamba import MambaSpec

MAMBA, ATTENTION = "mamba", "attention"
_NAMES = {"linear_attention": MAMBA, "full_attention": ATTENTION}


def read_kinds(reader: ConfigReader, key: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read a list of layers' kinds, in transformers' old words or its new ones.

    Args:
        known: kinds that the family has, in the old words.
    """
    kinds = tuple(_NAMES.get(str(kind), str(kind)) for kind in reader.items(key))
    if not kinds or any(kind not in known for kind in kinds):
        raise reader.bad(key, f"a list of {', '.join(known)}")
    return kinds


def require_layers(reader: ConfigReader, kinds: Sequence[str], key: str) -> None:
    """Refuse a number of layers other than that of the listed ones.

    Raises:
        ConfigInvalid: ``num_hidden_layers`` contradicts ``key``.
    """
    if reader.integer("num_hidden_layers", len(kinds)) != len(kinds):
        raise reader.bad("num_hidden_layers", f"{len(kinds)}, the layers that {key} lists")


def require_unbounded_steps(reader: ConfigReader) -> None:
    """Refuse bounds of the time step: no published model has any, and implementations differ in them.

    Raises:
        ConfigInvalid: ``time_step_limit`` is another than 0 to infinity.
    """
    limits = reader.items("time_step_limit")
    if limits and limits != [0, math.inf]:
        raise reader.bad("time_step_limit", "[0.0, Infinity], as time steps are not bounded")


def require_value(reader: ConfigReader, key: str, wanted: object) -> None:
    """Refuse a value other than the only supported one, which an absent key has.

    Raises:
        ConfigInvalid: names the key.
    """
    if reader.values.get(key, wanted) != wanted:
        raise reader.bad(key, "null" if wanted is None else str(wanted).lower())


def require_groups(reader: ConfigReader, spec: MambaSpec, keys: tuple[str, str]) -> None:
    """Refuse groups that do not share heads equally.

    Args:
        keys: names of heads and of groups.

    Raises:
        ConfigInvalid: the groups do not divide the heads.
    """
    heads, groups = keys
    if spec.heads % spec.groups:
        raise reader.bad(groups, f"a divisor of {heads} ({spec.heads}); {spec.groups} does not divide it")


def read_factors(reader: ConfigReader, key: str, count: int) -> tuple[float, ...]:
    """Read a list of ``count`` numbers above zero; ones where it is absent or null."""
    factors = reader.items(key) or [1.0] * count
    if len(factors) != count or not all(map(_is_factor, factors)):
        raise reader.bad(key, f"a list of {count} numbers above zero")
    return tuple(map(float, factors))  # type: ignore[arg-type]


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def read_head_size(reader: ConfigReader, heads: int, inner: int, source: str) -> int:
    """Read ``mamba_d_head``, the channels of a head, which with ``mamba_n_heads`` make up ``inner``.

    Args:
        source: keys that ``inner`` comes from, for messages.

    Raises:
        ConfigInvalid: they do not.
    """
    is_auto = reader.values.get("mamba_d_head", "auto") in ("auto", None)
    size = max(1, inner // heads) if is_auto else reader.integer("mamba_d_head")
    if heads * size != inner:
        raise reader.bad(
            "mamba_d_head", f"channels that with mamba_n_heads ({heads}) make {source} ({inner})"
        )
    return size
