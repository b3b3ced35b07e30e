"""``quant_method: compressed-tensors``: groups of layers, each with a format (llm-compressor)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import block_of, group_of, layer_names, not_read
from wisp_plan.quantization.stored_format import SCALE_DTYPES, VALUES, StoredPart

METHOD: Final = "compressed-tensors"
MIXED = "mixed-precision"
_ACT_ORDERS = ("group", "dynamic")  # one means the other; others keep groups of neighbouring columns


def read(config: ConfigReader) -> Quantization:
    """Read the section.

    Raises:
        ConfigInvalid: a key is mistyped, or its format is not read.
    """
    sparsity = config.section("sparsity_config")
    if sparsity and sparsity.text("format", "dense") != "dense":
        raise not_read(sparsity, "format", sparsity.text("format"))
    transforms = config.section("transform_config")
    if transforms and transforms.values.get("config_groups"):
        raise not_read(config, "transform_config", "rotations of activations")
    ignored = Rule(layer_names(config, "ignore"), None)
    return Quantization(METHOD, (ignored, *_groups(config)), kv=_kv(config))


def _groups(config: ConfigReader) -> Iterator[Rule]:
    groups = config.section("config_groups")
    if groups is None or not groups.values:
        raise config.bad("config_groups", "an object of groups of layers")
    whole = config.text("format", MIXED)
    for name in groups.values:
        group = groups.section(name)
        if group is None:
            continue
        weights = group.section("weights")
        scheme = _scheme(group, weights, group.text("format", whole)) if weights else None
        yield Rule(layer_names(group, "targets"), scheme)


def _scheme(group: ConfigReader, weights: ConfigReader, name: str) -> Scheme:
    bits, number = weights.integer("num_bits"), weights.text("type")
    match name, number, bits:
        case (("float-quantized" | "naive-quantized"), "float", 8):
            rows, columns = _scales(weights)
            return Scheme(METHOD, "fp8", rows, columns)
        case (("int-quantized" | "naive-quantized"), "int", 8):
            rows, columns = _scales(weights)
            if not weights.flag("symmetric", True):
                raise not_read(weights, "symmetric", "false: zero points of numbers that are not packed")
            return Scheme(METHOD, "int8", rows, columns)
        case "pack-quantized", "int", (4 | 8):
            return _packed(weights, bits)
        case "nvfp4-pack-quantized", "float", 4:
            return Scheme(METHOD, "nvfp4", 1, 16, is_packed=True, divides_by_tensor_scale=True)
        case "mxfp4-pack-quantized", "float", 4:
            return Scheme(METHOD, "mxfp4", 1, 32, is_packed=True)
        case "mxfp8-quantized", "float", 8:
            return Scheme(METHOD, "mxfp8", 1, 32)
        case _:
            raise not_read(group, "format", f"{name} with {bits} bits of type {number}")


def _packed(weights: ConfigReader, bits: int) -> Scheme:
    rows, columns = _scales(weights)
    return Scheme(
        METHOD,
        "int4" if bits == 4 else "int8",
        rows,
        columns,
        is_packed=True,
        has_zero_points=not weights.flag("symmetric", True),
        is_act_ordered=weights.text("actorder", "none") in _ACT_ORDERS,
    )


def _scales(weights: ConfigReader) -> tuple[int, int]:
    """Return the rows and columns that share a scale, by the ``strategy``."""
    match weights.text("strategy", "tensor"):
        case "tensor":
            return 0, 0
        case "channel":
            return 1, 0
        case "group":
            return 1, group_of(weights, "group_size")
        case "block":
            return block_of(weights, "block_structure") or (128, 128)
        case strategy:
            raise not_read(weights, "strategy", strategy)


def _kv(config: ConfigReader) -> Literal["fp8", "nvfp4"] | None:
    scheme = config.section("kv_cache_scheme")
    if scheme is None:
        return None
    match scheme.text("type"), scheme.integer("num_bits"), scheme.text("strategy", "tensor"):
        case "float", 8, "tensor":
            return "fp8"
        case kind, bits, strategy:
            raise not_read(config, "kv_cache_scheme", f"{bits} bits of type {kind} with a scale a {strategy}")


def parts(scheme: Scheme) -> Iterator[StoredPart]:
    """Yield the tensors of a layer."""
    yield _values(scheme)
    match scheme.kind:
        case "nvfp4":
            yield StoredPart("scale", "{weight}_scale", ("F8_E4M3",), columns=16)
            yield StoredPart("tensor_scale", "{weight}_global_scale", ("F32",), 0, 0)
        case "mxfp4" | "mxfp8":
            dtypes = ("U8", "F8_E8M0")
            yield StoredPart("scale", "{weight}_scale", dtypes, columns=scheme.columns, has_exponents=True)
        case _:
            yield StoredPart("scale", "{weight}_scale", SCALE_DTYPES, scheme.rows, scheme.columns)
    if scheme.has_zero_points:
        width = 8 if scheme.kind == "int4" else 4
        yield StoredPart("zero_point", "{weight}_zero_point", ("I32",), width, scheme.columns)
    if scheme.is_act_ordered:
        yield StoredPart("group", "{weight}_g_idx", ("I32",), rows=0)


def _values(scheme: Scheme) -> StoredPart:
    if not scheme.is_packed:
        return StoredPart(VALUES, "{weight}", ("I8",) if scheme.kind == "int8" else ("F8_E4M3",))
    if scheme.kind in ("nvfp4", "mxfp4"):
        return StoredPart(VALUES, "{weight}_packed", ("U8",), columns=2)
    return StoredPart(VALUES, "{weight}_packed", ("I32",), columns=8 if scheme.kind == "int4" else 4)
