"""``quant_method: mxfp4``: gpt-oss, whose experts are E2M1 with an e8m0 scale for every 32 along K."""

from __future__ import annotations

from typing import Final

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.layer_names import LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import layer_names
from wisp_plan.quantization.stored_format import VALUES, StoredPart

METHOD: Final = "mxfp4"
EXPERTS = LayerNames(("mlp.experts",))


def read(config: ConfigReader) -> Quantization:
    """Read the section.

    Raises:
        ConfigInvalid: a key is mistyped.
    """
    ignored = layer_names(config, "modules_to_not_convert")
    return Quantization(
        METHOD, (Rule(ignored, None), Rule(EXPERTS, Scheme("mxfp4", "mxfp4", 1, 32, is_packed=True)))
    )


def parts(scheme: Scheme) -> tuple[StoredPart, ...]:
    """Return the tensors of a layer's experts."""
    columns = scheme.columns
    scale = StoredPart("scale", "{weight}_scales", ("U8", "F8_E8M0"), columns=columns, has_exponents=True)
    return StoredPart(VALUES, "{weight}_blocks", ("U8",), columns=2, tail=columns // 2), scale
