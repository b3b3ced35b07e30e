"""Checks of models before ``wisp up`` serves them, and warnings about who may reach them.

What a process of this machine cannot have is :mod:`.pod_template`'s to refuse; the API's rules are checked
when a manifest is read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from wisp_operator.api import InferenceModel
from wisp_operator.core.naming.grants import foreign_meaning
from wisp_operator.errors import WispError
from wisp_operator.local.key_file import read_keys


class KeysMissing(WispError):
    """A model is protected by keys that this machine was not given."""


class ServedNameTaken(WispError):
    """A model asks for a name that is another's."""


def require_keys(model: InferenceModel, api_keys: Path | None) -> None:
    """Check that a protected model has keys.

    Raises:
        KeysMissing: there is no file of keys, or none in it.
    """
    if not model.spec.access.api_key_secret_ref:
        return
    if api_keys is None:
        raise KeysMissing(
            f"{model.key} lets in only callers with a key (spec.access.apiKeySecretRef), and "
            "a machine has no Secrets. Give a file with one key a line: --api-keys FILE."
        )
    keys, warning = read_keys(api_keys)
    if not keys:
        why = f" ({warning})" if warning else ""
        raise KeysMissing(
            f"{api_keys} holds no API key that can be read{why}, and {model.key} lets in only callers "
            "with one (spec.access.apiKeySecretRef). Write one key a line into it, as plain text."
        )


def require_own_names(models: Sequence[InferenceModel]) -> None:
    """Check that each model can have its names.

    Raises:
        ServedNameTaken: two of a namespace ask for one, of which a model's ``metadata.name`` comes first; or
            a served name has the form of another model's ``NAMESPACE/NAME``.
    """
    for model in models:
        if meaning := foreign_meaning(model.served_name, model.key):
            raise ServedNameTaken(
                f"{model.key} cannot have the name {model.served_name!r} (spec.model.servedName). {meaning} "
                f"Write a capital letter in it, as in {_capitalised(model.served_name)!r}, or no slash."
            )
    asking: dict[tuple[str, str], InferenceModel] = {}
    for model in sorted(models, key=lambda model: model.served_name != model.name):
        for name in (model.name, model.served_name):
            other = asking.setdefault((model.namespace, name), model)
            if other.key != model.key:
                raise ServedNameTaken(
                    f"{model.key} asks for the name {name!r} (spec.model.servedName), which is that of "
                    f"{other.key}. Choose another servedName for one of them."
                )


def _capitalised(name: str) -> str:
    """The name with each part's first letter in upper case: no Kubernetes name then."""
    return "/".join(part[:1].upper() + part[1:] for part in name.split("/"))


def access_warning(host: str, models: Sequence[InferenceModel], api_keys: Path | None) -> str:
    """Return a sentence on the models that are open to more callers than may be meant; empty: none is."""
    unguarded = ", ".join(model.key for model in models if not model.spec.access.api_key_secret_ref)
    if not unguarded:
        return ""
    if not _is_loopback(host):
        return (
            f"--host {host}: everybody who reaches this machine may use {unguarded}, without a key. "
            "Set spec.access.apiKeySecretRef and give --api-keys FILE, or leave out --host."
        )
    if api_keys is not None:
        return (
            f"--api-keys {api_keys}: these models need no key all the same: {unguarded}. Only models with "
            "spec.access.apiKeySecretRef do: set it, with any name, as in '{name: keys}'."
        )
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
