"""Turn a Hugging Face ``config.json`` into a :class:`~wisp_plan.spec.model.ModelSpec`.

Pure: a mapping in, a frozen dataclass out; unsupported models are refused here, before weights are read.
Each family translates its own architecture; a new family is a file beside them and its name in ``_FAMILIES``.
Defaults for absent keys are those of the ``Config`` classes of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wisp_plan.errors import ConfigInvalid, UnknownArchitecture
from wisp_plan.families import llama, mistral, qwen2, qwen3
from wisp_plan.families.reader import REMEDY, ConfigReader
from wisp_plan.spec.model import ModelSpec

Translator = Callable[[ConfigReader], ModelSpec]

_FAMILIES = (llama, mistral, qwen2, qwen3)
TRANSLATORS: dict[str, Translator] = {family.ARCHITECTURE: family.translate for family in _FAMILIES}
"""Translator of each architecture."""

SUPPORTED_ARCHITECTURES = tuple(TRANSLATORS)


def parse_config(config: Mapping[str, object]) -> ModelSpec:
    """Return the spec of the model that ``config`` describes.

    Args:
        config: parsed ``config.json``.

    Raises:
        UnknownArchitecture: none of ``architectures`` is supported.
        ConfigInvalid: a key is missing, mistyped, impossible, or not supported.
    """
    if not isinstance(config, Mapping):
        raise ConfigInvalid(f"config.json holds a {type(config).__name__}; expected an object. {REMEDY}")
    reader = ConfigReader(config)
    translate = TRANSLATORS[_architecture(reader)]
    _refuse_what_cannot_run(reader)
    return translate(reader)


def _architecture(reader: ConfigReader) -> str:
    listed = reader.values.get("architectures")
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise reader.bad("architectures", "a list such as ['LlamaForCausalLM']")
    for name in listed:
        if name in TRANSLATORS:
            return str(name)
    raise UnknownArchitecture(
        f"config.json: architecture {', '.join(listed)} is not supported; "
        f"supported: {', '.join(TRANSLATORS)}. Choose a model of one of these.",
        key="architectures",
    )


def _refuse_what_cannot_run(reader: ConfigReader) -> None:
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigInvalid(
            f"config.json: hidden_act is '{activation}'; only 'silu' is supported. Choose a model with it.",
            key="hidden_act",
        )
    quantized = reader.section("quantization_config")
    if quantized is not None:
        method = quantized.values.get("quant_method", "an unnamed method")
        raise ConfigInvalid(
            f"config.json: quantization_config says that the checkpoint is already quantized ({method}); "
            "such weights cannot be read yet. Use the repository of the unquantized model.",
            key="quantization_config",
        )
