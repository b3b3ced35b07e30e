"""Requests and limits of a runtime pod: the model's, else the installation's, and its GPU.

Amounts are written as the API server stores them, since a Deployment that reads differently from its manifest
would be applied again at every reconcile.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.desired.settings import BuildSettings

_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("m", "", "k", "M", "G", "T", "P", "E")
_AMOUNT = re.compile(r"([0-9]+(?:[.][0-9]+)?)(Ki|Mi|Gi|Ti|Pi|Ei|[mkMGTPE]?)")
_FACTORS = {unit: Decimal(1024) ** (power + 1) for power, unit in enumerate(_BINARY)}
_FACTORS |= {unit: Decimal(1000) ** (power - 1) for power, unit in enumerate(_DECIMAL)}


def resources(model: InferenceModel, settings: BuildSettings) -> dict[str, Any]:
    """The container's requests and limits; a GPU is both."""
    given, gpu = model.spec.resources, model.spec.gpu
    rows = (
        ("cpu", given.requests.cpu, given.limits.cpu, settings.cpu_request),
        ("memory", given.requests.memory, given.limits.memory, settings.memory_request),
        (
            "ephemeral-storage",
            given.requests.ephemeral_storage,
            given.limits.ephemeral_storage,
            settings.ephemeral_storage_request,
        ),
    )
    requests, limits = {}, {}
    for name, requested, limit, default in rows:
        requests[name] = canonical(requested or _lower(default, limit))
        if limit is not None:
            limits[name] = canonical(limit)
    if gpu.count:
        requests[gpu.resource_name] = limits[gpu.resource_name] = str(gpu.count)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def canonical(amount: str) -> str:
    """Write an amount in Kubernetes' canonical form: the largest unit in which it is a whole number.

    What is no amount stays as it is. Source: k8s.io/apimachinery/pkg/api/resource, CanonicalizeBytes.
    """
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        return amount
    units = ("", *_BINARY) if match[2] in _BINARY else _DECIMAL
    value = _value(amount)
    for unit in reversed(units):
        number = value / _FACTORS[unit]
        if number == number.to_integral_value() and number:
            return f"{int(number)}{unit}"
    return amount


def _lower(default: str, limit: str | None) -> str:
    return limit if limit is not None and _value(limit) < _value(default) else default


def _value(amount: str) -> Decimal:
    match = _AMOUNT.fullmatch(amount)
    return Decimal(match[1]) * _FACTORS[match[2]] if match else Decimal("Infinity")
