"""The environment of a runtime pod: where it may write, its tokens, and what the user adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wisp_operator.api import EnvVar, InferenceModel
from wisp_operator.desired.settings import BuildSettings

SECRET_KEYS = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
TOKEN_DIGESTS = "WISP_POD_TOKEN_SHA256"
LOG_FORMAT, OTLP_ENDPOINT = "WISP_LOG_FORMAT", "WISP_OTLP_ENDPOINT"
OPTIONAL_KEYS = {"s3": ("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")}


def environment(
    model: InferenceModel, settings: BuildSettings, token_digests: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The container's variables, each name once: what the user sets replaces ours, save the token digests."""
    variables: dict[str, dict[str, Any]] = {"HOME": {"name": "HOME", "value": "/tmp"}}
    if settings.log_format != "text":
        variables[LOG_FORMAT] = {"name": LOG_FORMAT, "value": settings.log_format}
    if settings.otlp_endpoint:
        variables[OTLP_ENDPOINT] = {"name": OTLP_ENDPOINT, "value": literal(settings.otlp_endpoint)}
    if settings.hub_endpoint and model.spec.model.scheme == "hf":
        variables["HF_ENDPOINT"] = {"name": "HF_ENDPOINT", "value": settings.hub_endpoint}
    secret = model.spec.model.secret_ref
    if secret is not None:
        for key in SECRET_KEYS[model.spec.model.scheme]:
            variables[key] = _from_secret(key, secret.name, key)
        for key in OPTIONAL_KEYS.get(model.spec.model.scheme, ()):
            variables[key] = _from_secret(key, secret.name, key, optional=True)
    for variable in model.spec.runtime.env:
        variables[variable.name] = _variable(variable)
    if token_digests:
        variables[TOKEN_DIGESTS] = {"name": TOKEN_DIGESTS, "value": ",".join(token_digests)}
    return list(variables.values())


def _variable(variable: EnvVar) -> dict[str, Any]:
    if variable.secret_ref is not None:
        return _from_secret(variable.name, variable.secret_ref.name, variable.secret_ref.key)
    return {"name": variable.name, "value": literal(variable.value or "")}


def literal(text: str) -> str:
    """Escape ``$``: a kubelet expands ``$(NAME)`` in arguments and values, also to the value of a Secret."""
    return text.replace("$", "$$")


def _from_secret(name: str, secret: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    source = {"name": secret, "key": key, **({"optional": True} if optional else {})}
    return {"name": name, "valueFrom": {"secretKeyRef": source}}
