"""Read typed keys out of a ``config.json``, naming key, value and remedy when one is wrong.

Checks JSON types and ranges; :mod:`.config` and :mod:`.generation` give the keys their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from wisp_plan.errors import ConfigInvalid
from wisp_plan.json_object import shorten

_MISSING = object()
REMEDY = "Take config.json from the model's own repository."

MAX_VALUES = {
    "num_hidden_layers": 1 << 10,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "shared_expert_intermediate_size": 1 << 20,
    "moe_shared_expert_intermediate_size": 1 << 20,
    "shared_intermediate_size": 1 << 20,
    "moe_latent_size": 1 << 17,
    "n_shared_experts": 1 << 6,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "linear_num_key_heads": 1 << 12,
    "linear_num_value_heads": 1 << 12,
    "linear_key_head_dim": 1 << 12,
    "linear_value_head_dim": 1 << 12,
    "linear_conv_kernel_dim": 1 << 6,
    "mamba_num_heads": 1 << 12,
    "mamba_n_heads": 1 << 12,
    "mamba_head_dim": 1 << 12,
    "mamba_d_head": 1 << 12,
    "ssm_state_size": 1 << 12,
    "mamba_d_state": 1 << 12,
    "n_groups": 1 << 12,
    "mamba_n_groups": 1 << 12,
    "conv_kernel": 1 << 6,
    "mamba_d_conv": 1 << 6,
    "mamba_expand": 1 << 6,
    "mamba_d_ssm": 1 << 17,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 28,
    "original_max_position_embeddings": 1 << 28,
}
"""Maximum of each dimension, some eight times that of any published model: the plan loops over layers, and
a file from a stranger must not decide for how long."""

MAX_INTEGER = (1 << 31) - 1
MAX_TOKEN_IDS = 1024


class ConfigReader:
    """Typed look-ups in one JSON object.

    A key that is absent or null takes the default; without a default it is an error.

    Args:
        values: the JSON object.
        path: prefix of keys in error messages, e.g. ``rope_scaling.``.
        file, remedy: name of the file, and last sentence of error messages.

    Attributes:
        values, path, file: the same.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        path: str = "",
        *,
        file: str = "config.json",
        remedy: str = REMEDY,
    ) -> None:
        self.values = values
        self.path = path
        self.file, self._remedy = file, remedy

    def has(self, key: str) -> bool:
        """Return whether ``key`` is there, null or not."""
        return key in self.values

    def with_defaults(self, defaults: Mapping[str, object]) -> ConfigReader:
        """Return a reader to which keys that are absent or null have these values."""
        absent = {key: value for key, value in defaults.items() if self.values.get(key) is None}
        return ConfigReader({**self.values, **absent}, self.path, file=self.file, remedy=self._remedy)

    def bad(self, key: str, wanted: str) -> ConfigInvalid:
        """Make the error for a value other than ``wanted``."""
        name = self.path + key
        if self.values.get(key, _MISSING) is _MISSING:
            return self._error(name, f"is missing; expected {wanted}")
        value = self.values[key]
        shown = shorten(repr(value) if isinstance(value, str) else value)
        return self._error(name, f"is {shown}; expected {wanted}")

    def _error(self, name: str, wrong: str) -> ConfigInvalid:
        return ConfigInvalid(f"{self.file}: {name} {wrong}. {self._remedy}", key=name)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Read a whole number that is at least ``minimum``, and at most the key's of ``MAX_VALUES``."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.bad(key, f"a whole number of at least {minimum}")
        maximum = MAX_VALUES.get(key, MAX_INTEGER)
        if value > maximum:
            raise self.bad(key, f"a whole number of at most {maximum}")
        return value

    def optional_integer(self, key: str, default: int | None = None, *, minimum: int = 0) -> int | None:
        """Read a whole number; null gives None, and an absent key the default."""
        if key not in self.values:
            return default
        return None if self.values[key] is None else self.integer(key, minimum=minimum)

    def number(self, key: str, default: float | None = None) -> float:
        """Read a finite number above zero."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < (result := _as_float(value)) < math.inf:
            raise self.bad(key, "a number above zero")
        return result

    def number_within(self, key: str, minimum: float, maximum: float) -> float | None:
        """Read a number from ``minimum`` to ``maximum``; None where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not minimum <= (result := _as_float(value)) <= maximum:
            raise self.bad(key, f"a number from {minimum:g} to {maximum:g}")
        return result

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Read a string that is not empty."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.bad(key, "a string")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """Read a nested object, or None when it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.bad(key, "an object")
        return ConfigReader(value, f"{self.path}{key}.", file=self.file, remedy=self._remedy)

    def items(self, key: str) -> list[object]:
        """Read a list; empty where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.bad(key, "a list")
        return value

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Read one token id or a list of them; null is none, duplicates are dropped."""
        if key not in self.values:
            return default
        value = self.values[key]
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if len(listed) > MAX_TOKEN_IDS or not all(map(_is_token_id, listed)):
            raise self.bad(key, f"a token id or a list of token ids, at most {MAX_TOKEN_IDS}")
        return tuple(dict.fromkeys(listed))


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER


def _as_float(value: object) -> float:
    """Turn a JSON number into a float; an integer beyond its range becomes infinity."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
