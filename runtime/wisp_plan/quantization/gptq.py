"""``quant_method: gptq``: 4- or 8-bit numbers packed along K, with groups, zero points and act-order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.layer_names import EVERY_LAYER, REGEX, LayerNames
from wisp_plan.quantization.scheme import Kind, Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import group_of, not_read
from wisp_plan.quantization.stored_format import SCALE_DTYPES, VALUES, StoredPart

METHOD: Final = "gptq"
KINDS: dict[int, Kind] = {4: "int4", 8: "int8"}


def read(config: ConfigReader) -> Quantization:
    """Read the section, and the layers that its ``dynamic`` treats otherwise.

    Raises:
        ConfigInvalid: a key is mistyped, or its format is not read.
    """
    layout = config.text("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise not_read(config, "checkpoint_format", layout)
    rest = [] if config.flag("lm_head", False) else [Rule(LayerNames(("lm_head",)), None)]
    every = Rule(LayerNames((EVERY_LAYER,)), _scheme(config, is_first_version=layout == "gptq"))
    return Quantization(METHOD, (*_dynamic(config, layout == "gptq"), *rest, every))


def _scheme(config: ConfigReader, *, is_first_version: bool) -> Scheme:
    bits, is_symmetric = config.integer("bits"), config.flag("sym", True)
    if bits not in KINDS:
        raise not_read(config, "bits", bits)
    columns = group_of(config, "group_size")
    return Scheme(
        "gptq",
        KINDS[bits],
        1,
        columns,
        is_packed=True,
        has_zero_points=not is_symmetric,
        stores_zero_minus_one=is_first_version and not is_symmetric,
        is_act_ordered=config.flag("desc_act", False) and columns > 0,
    )


def _dynamic(config: ConfigReader, is_first_version: bool) -> Iterator[Rule]:
    """Yield a rule for each regex of ``dynamic``: ``-:`` leaves layers as they are, others have own keys."""
    section = config.section("dynamic")
    for name, own in (section.values if section else {}).items():
        sign, _, regex = name.partition(":") if name[:2] in ("+:", "-:") else ("+", "", name)
        layers = LayerNames.of([REGEX + regex], f"{config.path}dynamic")
        if sign == "-":
            yield Rule(layers, None)
            continue
        if not isinstance(own, Mapping):
            assert section is not None
            raise section.bad(name, "an object")
        merged = ConfigReader({**config.values, **own}, f"{config.path}dynamic.")
        yield Rule(layers, _scheme(merged, is_first_version=is_first_version))


def parts(scheme: Scheme) -> Iterator[StoredPart]:
    """Yield the tensors of a layer."""
    width, group = (8 if scheme.kind == "int4" else 4), scheme.columns
    yield StoredPart(VALUES, "{layer}.qweight", ("I32",), columns=width, is_transposed=True)
    yield StoredPart("scale", "{layer}.scales", SCALE_DTYPES, columns=group, is_transposed=True)
    if scheme.has_zero_points:
        zeros = StoredPart("zero_point", "{layer}.qzeros", ("I32",), width, group)
        yield replace(zeros, is_transposed=True)
    if scheme.is_act_ordered:
        yield StoredPart("group", "{layer}.g_idx", ("I32",), rows=0)
