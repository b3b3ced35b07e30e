"""Ask before any pod exists whether a model fits the GPU it wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FitReport:
    """What ``status.fit`` says: the verdict and the numbers behind it.

    Attributes:
        verdict: Unknown if the model's files or the GPU's memory could not be learnt.
        message: one sentence; with DoesNotFit it ends in the remedy.
        basis: what was read to know: headers of the weights, and which GPU's memory.
    """

    verdict: Literal["Fits", "DoesNotFit", "Unknown"]
    message: str
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    max_context: int = 0
    max_concurrent_at_context: int = 0
    headroom_bytes: int = 0
    gpu: str = ""
    basis: str = ""
