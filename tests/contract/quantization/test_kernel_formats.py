"""Weight formats that the plan believes in are those that the kernels' manifests list."""

from __future__ import annotations

from pathlib import Path

import pytest

from wisp_plan.hardware.catalogue import CARDS, COMPILED, TRIED
from wisp_plan.hardware.kernel_formats import KERNEL_FORMATS, kernel_formats
from wisp_plan.quantization.packed_format import PACKED_FORMATS, W8A8
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import Source

CATALOGUE = Catalogue(Path(__file__).parents[3] / "kernels")
GEMMS = ("linear", "linear_swiglu", "linear_rotary")
"""Ops through which every projection of a dense model goes, of those that a generation has."""


def reads(hardware: str, op: str, name: str) -> bool:
    return isinstance(CATALOGUE.choose(op, hardware, name), Source)


@pytest.mark.parametrize("hardware", KERNEL_FORMATS)
def test_each_generation_s_formats_are_those_of_its_manifest(hardware):
    gemms = [op for op in GEMMS if reads(hardware, op, "bf16")]
    assert {"linear", "linear_swiglu"} <= set(gemms)
    names = ("bf16", *PACKED_FORMATS)
    served = tuple(name for name in names if all(reads(hardware, op, name) for op in gemms))
    assert KERNEL_FORMATS[hardware] == served, "edit wisp_plan/hardware/kernel_formats.py"


def test_every_generation_with_kernels_is_listed_and_no_other():
    assert set(KERNEL_FORMATS) == {*TRIED, *COMPILED}
    compiled = {hardware.name for hardware in CATALOGUE.architectures().values()}
    assert set(KERNEL_FORMATS) == compiled


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_has_formats_exactly_if_the_runtime_does_not_refuse_it(card):
    assert bool(kernel_formats(card.hardware)) is (card.support != "refused")


@pytest.mark.parametrize("hardware", KERNEL_FORMATS)
def test_activations_are_e4m3_where_there_is_a_kernel_that_rounds_them(hardware):
    rounds = isinstance(CATALOGUE.choose("quantize_tokens", hardware), Source)
    assert kernel_formats(hardware) == (*KERNEL_FORMATS[hardware], *((W8A8,) if rounds else ()))


def test_an_unknown_gpu_has_what_all_have_and_room_for_what_some_have():
    assert set(kernel_formats(None)) == {*set.intersection(*map(set, KERNEL_FORMATS.values())), W8A8}
