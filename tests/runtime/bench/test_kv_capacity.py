"""Capacity of the KV cache in each format, on a device that counts: what is allocated is the ledger's."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/memory"))
import kv_capacity

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.presets import shape_spec
from wisp_plan.units import GIB

LLAMA = "llama-3-8b"


class CountingOps:
    """A device that counts the bytes of its arenas."""

    copy_slot = None

    def __init__(self, lost_bytes=0):
        self.taken, self.lost_bytes = 0, lost_bytes

    def kv_arena(self, shape, kv_format):
        self.taken += math.prod(shape) * (1 if kv_format.is_quantized else 2) + self.lost_bytes
        return [SimpleNamespace() for _ in range(shape[0])]

    def free_bytes(self):
        return 100 * GIB - self.taken


def measured(kv, shape=LLAMA, lost_bytes=0):
    ops = CountingOps(lost_bytes)
    return kv_capacity.measure(shape, shape_spec(shape), kv, ops, ops.free_bytes)


@pytest.mark.parametrize("shape", kv_capacity.SHAPES)
@pytest.mark.parametrize("kv", list(kv_capacity.cases()), ids=str)
def test_every_format_takes_the_bytes_of_the_ledger(kv, shape):
    row = measured(kv, shape)
    assert row["taken_bytes"] == row["ledger_bytes"]
    assert row["off_percent"] == 0
    assert 7.9 * GIB < row["taken_bytes"] <= 8 * GIB


def test_tokens_a_gib_are_those_of_the_documentation():
    tokens = {str(kv): measured(kv)["value"] for kv in kv_capacity.cases() if not kv.plain_layers}
    assert {name: round(value) for name, value in tokens.items()} == {
        **{"bf16": 8192, "fp8": 16384, "turbo8": 16384, "nvfp4": 29127, "turbo4": 29127, "turbo3": 37449}
    }


def test_layers_in_bf16_count_as_such():
    mixed = measured(KvLayers.of("turbo4", plain_layers=2))["value"]
    assert mixed == pytest.approx(32 / (28 / 29127.1 + 4 / 8192), rel=1e-4)


def test_memory_that_the_driver_gives_beyond_the_ledger_shows():
    assert measured(KvLayers.of("fp8"), lost_bytes=GIB // 8)["off_percent"] < -3
