"""A model's own way to make vectors and scores of texts, by the files of its checkpoint.

``modules.json`` and ``1_Pooling/config.json`` are those of sentence-transformers. A decoder without them
or GGUF's ``pooling_type`` pools its last token and normalises: every model can be asked for embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wisp_runtime.convert.tokenizer_files import SETTINGS, TokenizerFiles
from wisp_runtime.errors import TokenizerUnreadable
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.text.tokenizer import ModelTokenizer

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
MODES: dict[str, Literal["last", "mean"]] = {
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "mean": "mean",
}
"""Modes of ``1_Pooling/config.json``, as keys that are true or as the value of ``pooling_mode``."""
GGUF_MODES: dict[int, Literal["last", "mean"]] = {0: "last", 1: "mean", 3: "last"}
"""Modes of GGUF's ``pooling_type``; 0 is none."""
MODULE_KINDS = ("Transformer", "Pooling", "Normalize")
RERANKER_NAME = "rerank"
YES_NO = ("no", "yes")
MARKUP = "<|im_start|>"


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """Way to make vectors and scores.

    Attributes:
        kind: pooling of embeddings.
        normalises: whether embeddings have length 1 unless the request says otherwise.
        end_token: token that every embedded text ends with; None: as the tokenizer ends it.
        verdicts: tokens of "no" and "yes" of a model that answers whether a document matches a query; None:
            scores are cosines of embeddings.
        refusal: reason for which the model gives no embeddings; empty if it does.
    """

    kind: Literal["last", "mean"] = "last"
    normalises: bool = True
    end_token: int | None = None
    verdicts: tuple[int, int] | None = None
    refusal: str = ""


def require_embeddings(settings: PoolingSettings) -> None:
    """Check that the model gives embeddings.

    Raises:
        ApiError: 400; its checkpoint asks for what is not computed here.
    """
    if settings.refusal:
        raise bad_request(f"The model gives no embeddings: {settings.refusal}.", "model", "unsupported_model")


def read_pooling(path: Path, names: Sequence[str], tokenizer: ModelTokenizer) -> PoolingSettings:
    """Read the settings of the model at ``path``, a folder or a GGUF file.

    Args:
        path: place of its files.
        names: names that it goes by; one that says "rerank" counts.
        tokenizer: its tokenizer.

    Raises:
        TokenizerUnreadable: a file is broken; the message names it.
    """
    files = TokenizerFiles(path)
    kind, normalises, refusal = _modules(files)
    adds_end = files.json(SETTINGS).get("add_eos_token") is True
    return PoolingSettings(
        kind=kind,
        normalises=normalises,
        end_token=tokenizer.end_id if adds_end else None,
        verdicts=_verdicts(files.json("config.json"), [path.name, *names], tokenizer),
        refusal=refusal,
    )


def _modules(files: TokenizerFiles) -> tuple[Literal["last", "mean"], bool, str]:
    """Return the pooling of ``modules.json``, whether it normalises, and why it cannot be followed."""
    modules = _module_kinds(files)
    if not modules:
        kind = GGUF_MODES.get(number := files.pooling_type or 0)
        return kind or "last", True, "" if kind else f"its pooling_type {number} is not computed here"
    if unknown := [name for name in modules if name not in MODULE_KINDS]:
        return "last", True, f"modules.json lists {unknown[0][:80]!r}, which is not computed here"
    config = files.json(POOLING)
    given = [mode for mode, value in config.items() if mode.startswith("pooling_mode_") and value is True]
    given += [mode for mode in [config.get("pooling_mode")] if isinstance(mode, str)]
    normalises = "Normalize" in modules
    if not given:
        return "last", normalises, ""
    if len(given) > 1 or given[0] not in MODES:
        return (
            "last",
            normalises,
            f"{POOLING} asks for {' and '.join(given)[:200]}; computed are last and mean",
        )
    return MODES[given[0]], normalises, ""


def _module_kinds(files: TokenizerFiles) -> list[str]:
    """Return the last words of the types in ``modules.json``; none without the file."""
    text = files.text(MODULES)
    if text is None:
        return []
    try:
        return [str(module["type"]).rsplit(".", 1)[-1] for module in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TokenizerUnreadable(
            f"{files.folder / MODULES} is no list of modules with types. Download the model again, or remove "
            "the file."
        ) from error


def _verdicts(
    config: dict[str, Any], names: Sequence[str], tokenizer: ModelTokenizer
) -> tuple[int, int] | None:
    """Return the tokens of "no" and "yes": those that ``config.json`` names, or a reranker's."""
    named = config.get("classifier_from_token")
    is_named = isinstance(named, list) and len(named) == 2 and all(isinstance(word, str) for word in named)
    if not is_named and not any(RERANKER_NAME in name.lower() for name in names):
        return None
    words = tuple(named) if is_named and named else YES_NO
    no, yes, markup = (tokenizer.tokenizer.token_to_id(word) for word in (*words, MARKUP))
    return None if no is None or yes is None or markup is None else (no, yes)
