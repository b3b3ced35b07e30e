"""Defaults of a model's answers: tokens that end one, and sampling where a request names no value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wisp_plan.checkpoint.directory import read_generation_config
from wisp_plan.errors import ConfigDamaged, PlanError
from wisp_plan.families.generation import GenerationConfig
from wisp_runtime.config import GenerationDefaults
from wisp_runtime.engine.transport.messages import SamplingParams
from wisp_runtime.errors import ModelUnsupported, WeightsUnreadable
from wisp_runtime.server.text.tokenizer import ModelTokenizer

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters that ``generation_config.json`` may give, by the names of request and file."""
MAX_SHOWN_CHARS = 40
API_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class AnswerDefaults:
    """Defaults of a model's answers.

    Attributes:
        end_tokens: tokens that end an answer, besides those that the engine knows from ``config.json``.
        sampling: parameters of a request that names none.
    """

    end_tokens: tuple[int, ...] = ()
    sampling: SamplingParams = API_SAMPLING

    def ending_also(self, tokens: Iterable[int]) -> AnswerDefaults:
        """Return the same with further tokens that end an answer."""
        return replace(self, end_tokens=tuple(sorted({*self.end_tokens, *tokens})))

    def to_dict(self, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
        """Return the fields of ``/v1/models`` that show them.

        Args:
            eos_token_ids: end tokens of ``config.json``.
        """
        return {
            "eos_token_ids": sorted({*eos_token_ids, *self.end_tokens}),
            "sampling_defaults": self.sampling_defaults(),
        }

    def sampling_defaults(self) -> dict[str, float]:
        """Return the sampling parameters of a request that names none."""
        return {name: getattr(self.sampling, name) for name in FIELDS}

    def describe(self) -> str:
        """Return the parameters that differ from the API's, for the log; an empty text if none does."""
        pairs = [(name, getattr(self.sampling, name)) for name in FIELDS]
        return ", ".join(f"{name} {value:g}" for name, value in pairs if value != getattr(API_SAMPLING, name))


def read_defaults(directory: Path, tokenizer: ModelTokenizer, mode: GenerationDefaults) -> AnswerDefaults:
    """Read a model's defaults from its folder.

    Args:
        directory: folder of the model.
        tokenizer: its tokenizer, whose own end token counts too: fine-tunes often name theirs only there.
        mode: ``none`` leaves sampling at the API's defaults.

    Raises:
        WeightsUnreadable: ``generation_config.json`` is not JSON.
        ModelUnsupported: a value of it is none that a model can mean.
    """
    try:
        config = read_generation_config(directory, has_sampling=mode == "auto")
    except ConfigDamaged as error:
        raise WeightsUnreadable(error.message) from error
    except PlanError as error:
        raise ModelUnsupported(error.message) from error
    end = () if tokenizer.end_id is None else (tokenizer.end_id,)
    return AnswerDefaults(tuple(sorted({*config.eos_token_ids, *end})), _sampling_of(config))


def notes_of(tokenizer: ModelTokenizer, defaults: AnswerDefaults, vocab_size: int) -> Iterator[str]:
    """Yield a line for each thing about a model's texts that its user should know."""
    if described := defaults.describe():
        yield f"requests that name no other are sampled with {described} (--generation-config none: without)"
    if tokenizer.largest_id >= vocab_size:
        yield (
            f"the tokenizer knows token ids up to {tokenizer.largest_id}, the model only those below "
            f"{vocab_size}; a prompt that contains one of the others is refused"
        )
    if tokenizer.renumbered:
        text, wanted, given = tokenizer.renumbered[0]
        others = f", and {len(tokenizer.renumbered) - 1} more likewise" * (len(tokenizer.renumbered) > 1)
        yield (
            f"tokenizer.json gives the added token {text[:MAX_SHOWN_CHARS]!r} the id {wanted}, which leaves "
            f"a gap in its vocabulary, so it is read as {given}{others}; prompts that contain it mean "
            "another token: correct tokenizer.json"
        )


def _sampling_of(config: GenerationConfig) -> SamplingParams:
    named = {name: getattr(config, name) for name in FIELDS}
    return replace(API_SAMPLING, **{name: value for name, value in named.items() if value is not None})
