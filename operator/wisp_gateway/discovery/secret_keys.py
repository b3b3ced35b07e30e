"""API keys of models, read from the Secrets that ``spec.access.apiKeySecretRef`` names.

Each is read by its name (RBAC ``get``, never ``list`` or ``watch``), when a model first names it and every 30
s after. Only digests are kept. Until a Secret was read, no key opens the models that name it; a deleted one
closes them again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterable

from wisp_gateway.discovery.api_server import ApiError, ApiServer, Json
from wisp_gateway.discovery.key_digests import digest

log = logging.getLogger(__name__)

PERIOD_S = 30.0
RETRY_S = 2.0

Digests = tuple[bytes, ...]


class SecretKeys:
    """Key digests of the Secrets that models name, by ``namespace/name``.

    Args:
        on_change: callback with the name of a Secret whose keys changed.
    """

    def __init__(self, api: ApiServer, on_change: Callable[[str], None]) -> None:
        self._api = api
        self._on_change = on_change
        self._watched: set[str] = set()
        self._known: dict[str, Digests] = {}
        self._warnings: dict[str, str] = {}
        self._is_new = asyncio.Event()

    def watch(self, secrets: Iterable[str]) -> None:
        """Replace the set of Secrets to read."""
        before, self._watched = self._watched, set(secrets)
        if self._watched - before:
            self._is_new.set()
        for gone in before - self._watched:
            self._known.pop(gone, None)
            self._warnings.pop(gone, None)

    def digests(self, secret: str) -> Digests:
        """Return the digests of the Secret's keys; none until it was read."""
        return self._known.get(secret, ())

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._is_new.clear()
            for secret in sorted(self._watched):
                await self._read(secret)
            try:
                await asyncio.wait_for(self._is_new.wait(), RETRY_S if self._warnings else PERIOD_S)
            except TimeoutError:
                continue

    async def _read(self, secret: str) -> None:
        namespace, name = secret.split("/")
        try:
            digests_read = parse(await self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}"))
        except ApiError as error:
            self._warn(secret, error)
            digests_read = () if error.code == 404 else self.digests(secret)
        else:
            self._warnings.pop(secret, None)
        if secret in self._watched and digests_read != self.digests(secret):
            self._known[secret] = digests_read
            self._on_change(secret)

    def _warn(self, secret: str, error: ApiError) -> None:
        if self._warnings.get(secret) == str(error):
            return
        self._warnings[secret] = str(error)
        namespace, name = secret.split("/")
        remedy = {
            403: f". Let the gateway: kubectl create role wisp-gateway-keys -n {namespace} --verb=get "
            f"--resource=secrets --resource-name={name}, and bind it to its account (docs/gateway.md)",
            404: ". Create it, or take it out of spec.access; until then its models are closed",
        }
        log.warning("API keys in Secret %s: %s%s", secret, error, remedy.get(error.code, ""))


def parse(secret: Json) -> Digests:
    """Return the digests of a Secret's values; each value is one key, surrounding white space left out."""
    digests_read = []
    for value in (secret.get("data") or {}).values():
        try:
            key = base64.b64decode(value).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            continue  # binary, such as a certificate: no client can send it
        if key:
            digests_read.append(digest(key))
    return tuple(sorted(digests_read))
