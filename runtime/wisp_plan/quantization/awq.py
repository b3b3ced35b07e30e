"""``quant_method: awq``: 4-bit numbers packed along N in AWQ's own order, with groups and zero points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import group_of, layer_names, not_read
from wisp_plan.quantization.stored_format import SCALE_DTYPES, VALUES, StoredPart

METHOD: Final = "awq"
NIBBLE_ROWS: Final = (0, 2, 4, 6, 1, 3, 5, 7)


def read(config: ConfigReader) -> Quantization:
    """Read the section.

    Raises:
        ConfigInvalid: a key is mistyped, or its format is not read.
    """
    version = config.text("version", "gemm")
    if version.lower() != "gemm":
        raise not_read(config, "version", version)
    bits = "bits" if config.has("bits") else "w_bit"
    if config.integer(bits) != 4:
        raise not_read(config, bits, config.integer(bits))
    group = group_of(config, "group_size" if config.has("group_size") else "q_group_size")
    has_zero_points = config.flag("zero_point", True)
    scheme = Scheme(
        METHOD, "int4", 1, group, is_packed=True, has_zero_points=has_zero_points, nibble_rows=NIBBLE_ROWS
    )
    ignored = layer_names(config, "modules_to_not_convert")
    unquantized = LayerNames((*ignored.entries, "lm_head"))
    return Quantization(METHOD, (Rule(unquantized, None), Rule(LayerNames((EVERY_LAYER,)), scheme)))


def parts(scheme: Scheme) -> Iterator[StoredPart]:
    """Yield the tensors of a layer."""
    group = scheme.columns
    yield StoredPart(VALUES, "{layer}.qweight", ("I32",), rows=8, is_transposed=True)
    yield StoredPart("scale", "{layer}.scales", SCALE_DTYPES, columns=group, is_transposed=True)
    if scheme.has_zero_points:
        yield StoredPart("zero_point", "{layer}.qzeros", ("I32",), 8, group, is_transposed=True)
