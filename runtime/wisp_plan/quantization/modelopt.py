"""``quant_method: modelopt``: FP8 and NVFP4 of NVIDIA's exporter, one algorithm or one a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import layer_names, not_read
from wisp_plan.quantization.stored_format import SCALE_DTYPES, VALUES, StoredPart

METHOD: Final = "modelopt"
MIXED = "MIXED_PRECISION"
SCHEMES = {
    "FP8": Scheme(METHOD, "fp8", 0, 0),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(METHOD, "fp8", 1, 0),
    "FP8_PB_WO": Scheme(METHOD, "fp8", 128, 128),
    "FP8_BLOCK_SCALES": Scheme(METHOD, "fp8", 128, 128),
    "NVFP4": Scheme(METHOD, "nvfp4", 1, 16, is_packed=True),
    "W4A16_NVFP4": Scheme(METHOD, "nvfp4", 1, 16, is_packed=True),
    "MXFP8": Scheme(METHOD, "mxfp8", 1, 32),
}


def read(config: ConfigReader) -> Quantization:
    """Read the section, or ``quantization`` in it, as a ``hf_quant_config.json`` has it.

    Raises:
        ConfigInvalid: a key is mistyped, or its format is not read.
    """
    config = config.section("quantization") or config
    ignored = Rule(layer_names(config, "exclude_modules", "ignore"), None)
    if config.text("quant_algo").upper() == MIXED:
        rules = tuple(_layers(config))
    else:
        rules = (Rule(LayerNames((EVERY_LAYER,)), _scheme(config)),)
    return Quantization(METHOD, (ignored, *rules), kv=_kv(config))


def _layers(config: ConfigReader) -> Iterator[Rule]:
    layers = config.section("quantized_layers")
    if layers is None:
        raise config.bad("quantized_layers", "an object of layers, as quant_algo is MIXED_PRECISION")
    names = LayerNames.of(layers.values, f"{config.path}quantized_layers")
    for name in names.entries:
        if layer := layers.section(name):
            yield Rule(LayerNames((name,)), _scheme(layer))


def _scheme(config: ConfigReader) -> Scheme:
    algorithm = config.text("quant_algo").upper()
    if algorithm not in SCHEMES:
        raise not_read(config, "quant_algo", algorithm)
    scheme = SCHEMES[algorithm]
    if scheme.kind == "nvfp4" and config.integer("group_size", 16) != scheme.columns:
        raise not_read(config, "group_size", config.integer("group_size"))
    return scheme


def _kv(config: ConfigReader) -> Literal["fp8", "nvfp4"] | None:
    scheme = config.values.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        section = config.section("kv_cache_scheme")
        assert section is not None
        name = f"{section.text('type')}{section.integer('num_bits')}"
        algorithm = {"float8": "FP8", "float4": "NVFP4"}.get(name, name)
    else:
        algorithm = config.text("kv_cache_quant_algo", "none").upper()
    match algorithm:
        case "NONE":
            return None
        case "FP8":
            return "fp8"
        case "NVFP4":
            return "nvfp4"
        case _:
            raise not_read(config, "kv_cache_quant_algo", algorithm)


def parts(scheme: Scheme) -> Iterator[StoredPart]:
    """Yield the tensors of a layer."""
    match scheme.kind:
        case "nvfp4":
            yield StoredPart(VALUES, "{weight}", ("U8",), columns=2)
            yield StoredPart("scale", "{weight}_scale", ("F8_E4M3",), columns=16)
            yield StoredPart("tensor_scale", "{weight}_scale_2", ("F32",), 0, 0)
        case "mxfp8":
            yield StoredPart(VALUES, "{weight}", ("F8_E4M3",))
            dtypes = ("U8", "F8_E8M0")
            yield StoredPart("scale", "{weight}_scale", dtypes, columns=32, has_exponents=True)
        case _:
            yield StoredPart(VALUES, "{weight}", ("F8_E4M3",))
            yield StoredPart("scale", "{weight}_scale", SCALE_DTYPES, scheme.rows, scheme.columns)
