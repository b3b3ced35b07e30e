"""Turn a Hugging Face ``config.json`` into a :class:`~wisp_plan.spec.model.ModelSpec`.

Pure: a mapping in, a frozen dataclass out; unsupported models are refused here, before weights are read.
Each family translates its own architecture; a new family is a file beside them and its name in ``_FAMILIES``.
Defaults for absent keys are those of the ``Config`` classes of transformers 5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from wisp_plan.errors import ConfigDamaged, ConfigInvalid, UnknownArchitecture
from wisp_plan.families import gemma3, llama, mistral, qwen2, qwen3
from wisp_plan.families.config_files import MAX_CONFIG_BYTES, OWN_FILES
from wisp_plan.families.hybrid import falcon_h1, granite_hybrid, nemotron_h, qwen3_5, qwen3_5_moe, qwen3_next
from wisp_plan.families.mixtures import glm4_moe, gpt_oss, mixtral, qwen3_moe
from wisp_plan.families.reader import REMEDY, ConfigReader
from wisp_plan.json_object import count_values, shorten
from wisp_plan.quantization.config import read_own_file, read_quantization
from wisp_plan.quantization.scheme import Quantization
from wisp_plan.spec.model import ModelSpec

Translator = Callable[[ConfigReader], ModelSpec]

ReadText = Callable[[str], bytes | None]
"""``read(name)``: contents of a file, or its first ``MAX_CONFIG_BYTES`` + 1 bytes; None: there is none."""

_FAMILIES = (
    *(gemma3, llama, mistral, qwen2, qwen3, qwen3_moe, mixtral, glm4_moe, gpt_oss),
    *(nemotron_h, granite_hybrid, falcon_h1, qwen3_next),
)
_FAMILIES_OF_SEVERAL = (qwen3_5, qwen3_5_moe)
TRANSLATORS: dict[str, Translator] = {family.ARCHITECTURE: family.translate for family in _FAMILIES}
TRANSLATORS |= {name: family.translate for family in _FAMILIES_OF_SEVERAL for name in family.ARCHITECTURES}
"""Translator of each architecture."""

_WITH_IMAGES, _TENSORS_OF_TEXT = "ForConditionalGeneration", "model.language_model"
"""End of the names of architectures that read images too, and prefix of their text model's tensors."""

_SHARED_KEYS = ("bos_token_id", "eos_token_id", "dtype", "torch_dtype")
"""Keys of the model with images that its text model may leave out."""

SUPPORTED_ARCHITECTURES = tuple(TRANSLATORS)

MAX_CONFIG_VALUES = 100_000


def parse_config_text(text: bytes, where: str, read_beside: ReadText = lambda _name: None) -> ModelSpec:
    """Return the spec of the model that a ``config.json`` describes.

    Args:
        text: contents of the file; a reader needs at most ``MAX_CONFIG_BYTES`` + 1 of them.
        where: folder or URI of the file, for messages.
        read_beside: reader of a file beside it, for the quantization that older checkpoints have there.

    Raises:
        UnknownArchitecture: none of ``architectures`` is supported.
        ConfigDamaged: too long, or not JSON.
        ConfigInvalid: not a model that can run.
    """
    try:
        spec = parse_config(_parse(text))
        return spec if spec.quantization else replace(spec, quantization=_beside(read_beside))
    except ConfigInvalid as error:
        raise error.at(where) from error


def _beside(read_beside: ReadText) -> Quantization | None:
    for name in OWN_FILES:
        if (text := read_beside(name)) is not None:
            values = _parse(text, name)
            if not isinstance(values, Mapping):
                raise ConfigInvalid(f"{name} holds a {type(values).__name__}; expected an object. {REMEDY}")
            return read_own_file(name, values)
    return None


def _parse(text: bytes, name: str = "config.json") -> Mapping[str, object]:
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigDamaged(f"{name} has more than {MAX_CONFIG_BYTES} bytes, unlike any model's. {REMEDY}")
    if (values := count_values(text)) > MAX_CONFIG_VALUES:
        raise ConfigDamaged(f"{name} has {values} values; at most {MAX_CONFIG_VALUES} are read. {REMEDY}")
    try:
        return json.loads(text.decode())  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise ConfigDamaged(f"{name} is not JSON ({error}). Correct it, or fetch it again.") from error


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
    architecture = _architecture(reader)
    text = text_part(reader)
    _refuse_what_cannot_run(text)
    spec = replace(TRANSLATORS[architecture](text), quantization=read_quantization(reader))
    return replace(spec, tensors=_TENSORS_OF_TEXT) if architecture.endswith(_WITH_IMAGES) else spec


def text_part(reader: ConfigReader) -> ConfigReader:
    """Return the keys of the text model: those of ``text_config`` where a model with images has one."""
    if (section := reader.section("text_config")) is None:
        return reader
    fallbacks = {key: reader.values[key] for key in _SHARED_KEYS if key in reader.values}
    return ConfigReader({**fallbacks, **section.values, **_ties(reader)}, section.path)


def _ties(reader: ConfigReader) -> dict[str, object]:
    """Return whether the head is the embedding table, which the model with images decides."""
    key = "tie_word_embeddings"
    return {key: reader.values[key]} if reader.values.get(key) is not None else {}


def _architecture(reader: ConfigReader) -> str:
    listed = reader.values.get("architectures")
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise reader.bad("architectures", "a list such as ['LlamaForCausalLM']")
    for name in listed:
        headless = re.sub("Model$", "ForCausalLM", name)  # embedding models are stored without their head
        if name in TRANSLATORS or headless in TRANSLATORS:
            return str(name if name in TRANSLATORS else headless)
    known = ", ".join(dict.fromkeys(name.partition("For")[0] for name in TRANSLATORS))
    raise UnknownArchitecture(
        f"config.json: architecture {shorten(', '.join(listed))} is not supported; "
        f"supported are those of {known}. Choose one of these models (docs/models.md).",
        key="architectures",
    )


def _refuse_what_cannot_run(reader: ConfigReader) -> None:
    if not reader.flag("is_causal", True) or reader.flag("use_bidirectional_attention", False):
        raise ConfigInvalid(
            "config.json: its tokens attend to those behind them (is_causal false, or "
            "use_bidirectional_attention); only causal attention is supported. Choose a model with it.",
            key="is_causal",
        )
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigInvalid(
            f"config.json: hidden_act is '{shorten(activation)}'; only 'silu' is supported. "
            "Choose a model with it.",
            key="hidden_act",
        )
