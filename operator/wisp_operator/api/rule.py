"""A rule of the API: one sentence, the fields that it reads, and a predicate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wisp_operator.api.types import InferenceModel


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence that must hold.

    Attributes:
        path: path of the object that carries the rule in the CRD; empty for the whole resource.
        sentence: the problem and its remedy, as the API server prints them.
        reads: paths of the fields it reads; a rule is skipped if one of them could not be read.
        holds: predicate, true if a model keeps the rule.
    """

    path: str
    sentence: str
    reads: tuple[str, ...]
    holds: Callable[[InferenceModel], bool]
