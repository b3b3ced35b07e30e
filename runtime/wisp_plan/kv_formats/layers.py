"""All KV formats, and the format of each layer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.fp4 import NVFP4
from wisp_plan.kv_formats.fp8 import FP8
from wisp_plan.kv_formats.plain import BF16, FLOAT32
from wisp_plan.kv_formats.turbo import TURBO3, TURBO4, TURBO8

KV_FORMATS = {kv_format.name: kv_format for kv_format in (BF16, FLOAT32, FP8, TURBO8, NVFP4, TURBO4, TURBO3)}
"""All formats by name, those of most bytes first. Another is registered by adding it here."""

_EVERY = tuple(name for name in KV_FORMATS if name != FLOAT32.name)
SERVED_KV_FORMATS = {"cpu": _EVERY, "cuda": _EVERY}
"""Formats that a device has code for, by its kind; ``bf16`` is float32 on the CPU."""


@dataclass(frozen=True, slots=True)
class KvLayers:
    """KV formats of a model's layers: one for most, bf16 or float32 for some of the first and last.

    Attributes:
        inner: format of the layers in between.
        plain: format of the first and the last ones: the device's unquantized one.
        plain_layers: number of layers at either end in ``plain``.
    """

    inner: KvFormat = BF16
    plain: KvFormat = BF16
    plain_layers: int = 0

    @classmethod
    def of(cls, name: str, device: Literal["cpu", "cuda"] = "cuda", plain_layers: int = 0) -> KvLayers:
        """Return the formats of layers on a device; on the CPU bf16 is held as float32."""
        plain = FLOAT32 if device == "cpu" else BF16
        inner = KV_FORMATS[name]
        return cls(inner if inner.is_quantized else plain, plain, plain_layers)

    def of_layer(self, index: int, layers: int) -> KvFormat:
        """Return the format of layer ``index`` of ``layers``."""
        is_inner = self.plain_layers <= index < layers - self.plain_layers
        return self.inner if is_inner else self.plain

    def __str__(self) -> str:
        """Return it for the ledger: ``fp8``, or ``fp8, first and last 2 layers bf16``."""
        if not self.plain_layers:
            return self.inner.name
        count = "layer" if self.plain_layers == 1 else f"{self.plain_layers} layers"
        return f"{self.inner.name}, first and last {count} {self.plain.name}"


PLAIN_LAYERS = KvLayers()
"""Every layer in bf16."""
