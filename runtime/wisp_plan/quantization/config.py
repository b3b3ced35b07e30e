"""Methods of quantization: reading a ``quantization_config``, and the tensors of its layers.

Each method is a module beside this file: ``METHOD``, ``read`` and ``parts``. It is imported when
a checkpoint has it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from wisp_plan.families.config_files import OWN_FILES
from wisp_plan.families.reader import ConfigReader
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


def _method(module: str) -> Method:
    """Return the method of a module of this package."""
    place = f"{__package__}.{module}"
    return Method(
        lambda section: importlib.import_module(place).read(section),
        lambda scheme: importlib.import_module(place).parts(scheme),
    )


MODELOPT, GGUF = "modelopt", "gguf"
METHODS = {
    "fp8": _method("fp8"),
    "compressed-tensors": _method("compressed_tensors"),
    "gptq": _method("gptq"),
    "awq": _method("awq"),
    "mxfp4": _method("mxfp4"),
    MODELOPT: _method("modelopt"),
    GGUF: _method("gguf"),
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
    if method.startswith(MODELOPT):  # modelopt_fp4 and others: quant_algo decides
        method = MODELOPT
    if method not in METHODS:
        raise not_read(section, "quant_method", method)
    return METHODS[method].read(section)


@lru_cache(maxsize=256)
def stored_format(scheme: Scheme) -> StoredFormat:
    """Return the format in which a checkpoint stores layers of a scheme."""
    return StoredFormat(scheme, tuple(METHODS[scheme.arrangement].parts(scheme)))
