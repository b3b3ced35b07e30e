"""Methods of quantization: reading a ``quantization_config``, and the tensors of its layers.

Each method is a module beside this file: ``METHOD``, ``read`` and ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization import awq, compressed_tensors, fp8, gguf, gptq, modelopt, mxfp4
from wisp_plan.quantization.scheme import Quantization, Scheme
from wisp_plan.quantization.scheme_reader import not_read
from wisp_plan.quantization.stored_format import StoredFormat, StoredPart


@dataclass(frozen=True, slots=True)
class Method:
    """A ``quant_method``.

    Attributes:
        read: reader of its section.
        parts: tensors of a layer in a scheme, the values first.
    """

    read: Callable[[ConfigReader], Quantization]
    parts: Callable[[Scheme], Iterable[StoredPart]]


METHODS = {
    module.METHOD: Method(module.read, module.parts)
    for module in (fp8, compressed_tensors, gptq, awq, mxfp4, modelopt, gguf)
}
"""Every method by its name; a new one is a file and its name here."""


def read_quantization(config: ConfigReader) -> Quantization | None:
    """Read how a checkpoint is quantized; None: it is not.

    Args:
        config: the whole ``config.json``.

    Raises:
        ConfigInvalid: a key is mistyped, or the format is not read.
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method").lower()
    if method.startswith(modelopt.METHOD):  # modelopt_fp4 and others: quant_algo decides
        method = modelopt.METHOD
    if method not in METHODS:
        raise not_read(section, "quant_method", method)
    return METHODS[method].read(section)


@lru_cache(maxsize=256)
def stored_format(scheme: Scheme) -> StoredFormat:
    """Return the format in which a checkpoint stores layers of a scheme."""
    return StoredFormat(scheme, tuple(METHODS[scheme.arrangement].parts(scheme)))
