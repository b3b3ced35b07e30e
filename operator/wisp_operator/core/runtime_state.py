"""A runtime pod's ``/state`` as dataclasses: the border between what a pod answers and what we compute with.

Pure. A pod is a tenant's, and may answer anything; past this module every number is finite and bounded, every
text short and every list too. A field that is absent or null has its default, unknown fields are dropped, and
anything else that differs from docs/contracts.md refuses the complete answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

MAX_BYTES = 64 << 10
MAX_PHASES = 32
MAX_NAME_CHARS = 128
MAX_MESSAGE_CHARS = 2048
MAX_REQUESTS = 1_000_000
MAX_NUMBER = float(1 << 53)  # bytes and tokens, which a double still counts one by one


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """One phase of a start."""

    name: str
    is_done: bool = False
    seconds: float = 0.0
    bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, KV blocks and tokens of a pod."""

    waiting: int = 0
    running: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Memory as the pod measured it; bytes and tokens."""

    fits: bool = False
    message: str = ""
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    max_context: int = 0
    max_concurrent_at_context: int = 0
    headroom_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The part of a ``/state`` that the operator uses."""

    model: str = ""
    status: str = ""
    device: str = ""
    phases: tuple[PhaseReport, ...] = ()
    load: Load = field(default_factory=Load)
    ledger: Ledger | None = None

    @property
    def stage(self) -> tuple[object, ...]:
        """Progress of the start; another value means that it has advanced."""
        return self.status, tuple((phase.name, phase.is_done) for phase in self.phases)


def read(text: bytes) -> RuntimeState:
    """Read the body of an answer.

    Raises:
        ValueError: it is no ``/state``, or larger than one may be; the message names the field.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"/state has more than {MAX_BYTES >> 10} KiB")
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("/state is nested too deeply") from error
    return parse(document)


def parse(document: object) -> RuntimeState:
    """Read the parsed JSON.

    Raises:
        ValueError: a field has another type than in the contract, or a value without measure.
    """
    fields = _object(document, "/state")
    phases = [] if fields.get("phases") is None else fields["phases"]
    if not isinstance(phases, list) or len(phases) > MAX_PHASES:
        raise ValueError(f"phases must be a list of at most {MAX_PHASES}")
    ledger = fields.get("ledger")
    return RuntimeState(
        model=_text(fields, "model", MAX_NAME_CHARS),
        status=_text(fields, "status", MAX_NAME_CHARS),
        device=_text(fields, "device", MAX_NAME_CHARS),
        phases=tuple(_phase(_object(phase, "a phase")) for phase in phases),
        load=_load(_object(fields.get("load"), "load")),
        ledger=_ledger(_object(ledger, "ledger")) if ledger else None,
    )


def _phase(fields: Mapping[str, Any]) -> PhaseReport:
    return PhaseReport(
        name=_text(fields, "name", MAX_NAME_CHARS),
        is_done=_text(fields, "state", MAX_NAME_CHARS) == "done",
        seconds=round(_number(fields, "seconds"), 3),
        bytes=_count(fields, "bytes"),
        total_bytes=_count(fields, "totalBytes"),
    )


def _load(fields: Mapping[str, Any]) -> Load:
    return Load(
        waiting=_count(fields, "waiting", MAX_REQUESTS),
        running=_count(fields, "running", MAX_REQUESTS),
        kv_blocks_used=_count(fields, "kvBlocksUsed"),
        kv_blocks_total=_count(fields, "kvBlocksTotal"),
        prompt_tokens_total=_count(fields, "promptTokensTotal"),
        cached_tokens_total=_count(fields, "cachedTokensTotal"),
        tokens_per_second=_number(fields, "tokensPerSecond"),
    )


def _ledger(fields: Mapping[str, Any]) -> Ledger:
    return Ledger(
        fits=fields.get("fits") is True,
        message=_text(fields, "message", MAX_MESSAGE_CHARS),
        weights_bytes=_count(fields, "weightsBytes"),
        kv_bytes_per_token=_count(fields, "kvBytesPerToken"),
        max_context=_count(fields, "maxContext"),
        max_concurrent_at_context=_count(fields, "maxConcurrentAtContext"),
        headroom_bytes=int(_number(fields, "headroomBytes", low=-MAX_NUMBER)),
    )


def _object(value: object, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object")
    return value


def _text(fields: Mapping[str, Any], name: str, max_chars: int) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > max_chars:
        raise ValueError(f"{name} must be text of at most {max_chars} characters")
    return value


def _count(fields: Mapping[str, Any], name: str, high: float = MAX_NUMBER) -> int:
    return int(_number(fields, name, high=high))


def _number(
    fields: Mapping[str, Any], name: str, *, low: float = 0.0, high: float = MAX_NUMBER
) -> float | int:
    value = fields.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number")
    if not low <= value <= high or math.isnan(value):
        raise ValueError(f"{name} must be between {low:.0f} and {high:.0f}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
