"""The tables of docs/quantization.md are those of the code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from wisp_plan.hardware.kernel_formats import KERNEL_FORMATS
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS, PackedFormat
from wisp_plan.units import GIB
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.layout import held_bytes

PAGE = (Path(__file__).parents[3] / "docs" / "quantization.md").read_text()
EXTENT = 4096
NAMES = {"bf16", *PACKED_FORMATS}


def rows_of(heading: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`(\w+)`", cell))


def gib_of(packed: PackedFormat | None) -> str:
    """Memory of an 8B's weights with its projections in a format."""
    held = [
        replace(weight, held=packed if weight.role == "projection" else None)
        for weight in declare(shape_spec("llama-3-8b"))
    ]
    return f"{sum(sum(held_bytes(weight)) for weight in held) / GIB:.1f} GiB"


def test_the_kernels_of_each_generation_are_listed():
    listed = {gpu.split()[0].lower(): named(formats) for gpu, formats in rows_of("Kernels by GPU")}
    assert listed.pop("others") == ()
    assert listed == dict(KERNEL_FORMATS)


def test_every_format_is_listed_with_its_bytes():
    rows = {named(row[0])[0]: row for row in rows_of("Bytes a weight")}
    _, _, _, size, model = rows.pop("bf16")
    assert (float(size), model) == (2, gib_of(None))
    assert list(rows) == list(PACKED_FORMATS)
    for name, (_, scale, zero_points, size, model) in rows.items():
        packed = PACKED_FORMATS[name]
        assert model == gib_of(packed)
        assert float(size) == round(packed.sections(EXTENT, EXTENT)[2] / EXTENT**2, 4), name
        assert (zero_points == "–") is not packed.has_zero_points
        assert scale.startswith(f"{packed.group} " if packed.group else "a ")


def test_each_packed_format_is_what_some_checkpoint_becomes():
    held = {name for row in rows_of("What a checkpoint becomes") for name in named(row[1])}
    assert held == set(PACKED_FORMATS)
