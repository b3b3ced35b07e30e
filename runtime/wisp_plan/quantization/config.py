"""Methods of quantization: reading a ``quantization_config``, and the tensors of its layers.

Each method is a module beside this file: ``METHOD``, ``read`` and ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

OWN_FILES = {
    "hf_quant_config.json": modelopt.METHOD,
    "quantize_config.json": gptq.METHOD,
    "quant_config.json": awq.METHOD,
}
"""Files of older checkpoints with the section that ``config.json`` lacks; their method if they name none."""


def read_quantization(config: ConfigReader) -> Quantization | None:
    """Read how a checkpoint is quantized; None: it is not.

    Args:
        config: the whole ``config.json``.

    Raises:
        ConfigInvalid: a key is mistyped, or the format is not read.
    """
    section = config.section("quantization_config")
    return None if section is None else _read(section, section.text("quant_method"))


def read_own_file(name: str, values: Mapping[str, object]) -> Quantization:
    """Read the section of a checkpoint from one of :data:`OWN_FILES`.

    Raises:
        ConfigInvalid: a key is mistyped, or the format is not read.
    """
    section = ConfigReader(values, file=name, remedy=f"Take {name} from the model's own repository.")
    return _read(section, section.text("quant_method", OWN_FILES[name]))


def _read(section: ConfigReader, method: str) -> Quantization:
    method = method.lower()
    if method.startswith(modelopt.METHOD):  # modelopt_fp4 and others: quant_algo decides
        method = modelopt.METHOD
    if method not in METHODS:
        raise not_read(section, "quant_method", method)
    return METHODS[method].read(section)


@lru_cache(maxsize=256)
def stored_format(scheme: Scheme) -> StoredFormat:
    """Return the format in which a checkpoint stores layers of a scheme."""
    return StoredFormat(scheme, tuple(METHODS[scheme.arrangement].parts(scheme)))
