"""``quant_method: fp8``: E4M3 with a scale a tensor, or one a block of 128 x 128 (DeepSeek, Qwen, GLM)."""

from __future__ import annotations

from typing import Final

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import block_of, layer_names, not_read
from wisp_plan.quantization.stored_format import SCALE_DTYPES, VALUES, StoredPart

METHOD: Final = "fp8"


def read(config: ConfigReader) -> Quantization:
    """Read the section.

    Raises:
        ConfigInvalid: a key is mistyped, or its format is not read.
    """
    for key in ("expert_dtype", "store_dtype"):
        if config.has(key):
            raise not_read(config, key, config.text(key))
    rows, columns = block_of(config, "weight_block_size") or (0, 0)
    scheme = Scheme("fp8", "fp8", rows, columns)
    ignored = layer_names(config, "modules_to_not_convert", "ignored_layers")
    return Quantization(METHOD, (Rule(ignored, None), Rule(LayerNames((EVERY_LAYER,)), scheme)))


def parts(scheme: Scheme) -> tuple[StoredPart, ...]:
    """Return the tensors of a layer; the scale is multiplied in spite of ``_inv``.

    Of a tensor it is ``weight_scale`` (AutoFP8), or ``weight_scale_inv`` too (transformers, Mistral).
    """
    inverse, plain = "{weight}_scale_inv", "{weight}_scale"
    name, alias = (inverse, "") if scheme.rows > 1 else (plain, inverse)
    dtypes = (*SCALE_DTYPES, "F8_E8M0", "U8")
    scale = StoredPart("scale", name, dtypes, scheme.rows, scheme.columns, has_exponents=True, alias=alias)
    return StoredPart(VALUES, "{weight}", ("F8_E4M3",)), scale
