"""Read a Hugging Face ``generation_config.json``: tokens that end an answer, and defaults of sampling.

Pure: the file's text in, a frozen dataclass out. Keys of other ways to generate (beams, lengths) are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from wisp_plan.errors import ConfigDamaged, ConfigInvalid
from wisp_plan.families.reader import ConfigReader
from wisp_plan.json_object import count_values

GENERATION_FILE = "generation_config.json"
MAX_GENERATION_BYTES = 1 << 20
MAX_GENERATION_VALUES = 100_000
REMEDY = "Take it from the model's own repository, or correct it."

MIN_REPETITION, MAX_REPETITION = 0.01, 100.0
"""Range of a repetition penalty, in which logits stay finite."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Contents of a ``generation_config.json``; None where the file names no value.

    Attributes:
        eos_token_ids: tokens that end an answer, besides those of ``config.json``.
        temperature: divisor of the logits, from 0 to 2.
        top_p: mass of the likeliest tokens that are kept, from 0 to 1.
        top_k: number of the likeliest tokens that are kept; 0 keeps all.
        min_p: share of the best token's probability below which a token is dropped, from 0 to 1.
        repetition_penalty: divisor of positive logits of tokens of prompt and answer, factor of negative.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def parse_generation_text(text: bytes, where: str, *, has_sampling: bool = True) -> GenerationConfig:
    """Return what a ``generation_config.json`` says.

    Args:
        text: contents of the file; a reader needs at most ``MAX_GENERATION_BYTES`` + 1 of them.
        where: folder of the file, for messages.
        has_sampling: whether defaults of sampling are read; if not, end tokens alone.

    Raises:
        ConfigDamaged: too long, or not JSON.
        ConfigInvalid: a value that no model can mean.
    """
    try:
        return _translate(_parse(text), has_sampling)
    except ConfigInvalid as error:
        raise error.at(where) from error


def _parse(text: bytes) -> ConfigReader:
    if len(text) > MAX_GENERATION_BYTES or count_values(text) > MAX_GENERATION_VALUES:
        raise ConfigDamaged(
            f"{GENERATION_FILE} has more than {MAX_GENERATION_BYTES} bytes or {MAX_GENERATION_VALUES} "
            f"values, unlike any model's. {REMEDY}"
        )
    try:
        values = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigDamaged(
            f"{GENERATION_FILE} is not JSON ({error}). Correct it, or fetch it again."
        ) from error
    if not isinstance(values, Mapping):
        raise ConfigInvalid(
            f"{GENERATION_FILE} holds a {type(values).__name__}; expected an object. {REMEDY}"
        )
    return ConfigReader(values, file=GENERATION_FILE, remedy=REMEDY)


def _translate(reader: ConfigReader, has_sampling: bool) -> GenerationConfig:
    end_tokens = reader.token_ids("eos_token_id")
    if not has_sampling:
        return GenerationConfig(end_tokens)
    penalty = reader.number_within("repetition_penalty", MIN_REPETITION, MAX_REPETITION)
    if not reader.flag("do_sample", True):  # transformers then reads none of the others
        return GenerationConfig(end_tokens, repetition_penalty=penalty)
    top_k = reader.optional_integer("top_k", minimum=-1)
    return GenerationConfig(
        eos_token_ids=end_tokens,
        temperature=reader.number_within("temperature", 0, 2),
        top_p=reader.number_within("top_p", 0, 1),
        top_k=None if top_k is None else max(top_k, 0),
        min_p=reader.number_within("min_p", 0, 1),
        repetition_penalty=penalty,
    )
