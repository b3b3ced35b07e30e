"""API keys of models, read from the Secrets that ``spec.access.apiKeySecretRef`` names.

Each is read by its name alone (RBAC ``get``, never ``list`` or ``watch``), when a model first names it and
every half minute after. Only digests are kept. Until a Secret could be read, nothing opens the models that
name it; a deleted one closes them again.
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
    """The keys of the Secrets that models name, by ``namespace/name``.

    Args:
        on_change: called with the name of a Secret whose keys changed.
    """

    def __init__(self, api: ApiServer, on_change: Callable[[str], None]) -> None:
        self._api = api
        self._on_change = on_change
        self._wanted: set[str] = set()
        self._known: dict[str, Digests] = {}
        self._complaints: dict[str, str] = {}
        self._is_new = asyncio.Event()

    def want(self, secrets: Iterable[str]) -> None:
        """Follow these Secrets, and forget all others."""
        before, self._wanted = self._wanted, set(secrets)
        if self._wanted - before:
            self._is_new.set()
        for gone in before - self._wanted:
            self._known.pop(gone, None)
            self._complaints.pop(gone, None)

    def digests(self, secret: str) -> Digests:
        """Digests of the Secret's keys; none until it was read."""
        return self._known.get(secret, ())

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._is_new.clear()
            for secret in sorted(self._wanted):
                await self._read(secret)
            try:
                await asyncio.wait_for(self._is_new.wait(), RETRY_S if self._complaints else PERIOD_S)
            except TimeoutError:
                continue

    async def _read(self, secret: str) -> None:
        namespace, name = secret.split("/")
        try:
            found = parse(await self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}"))
        except ApiError as error:
            self._complain(secret, error)
            found = () if error.code == 404 else self.digests(secret)
        else:
            self._complaints.pop(secret, None)
        if secret in self._wanted and found != self.digests(secret):
            self._known[secret] = found
            self._on_change(secret)

    def _complain(self, secret: str, error: ApiError) -> None:
        if self._complaints.get(secret) == str(error):
            return
        self._complaints[secret] = str(error)
        namespace, name = secret.split("/")
        remedy = {
            403: f". Let the gateway: kubectl create role wisp-gateway-keys -n {namespace} --verb=get "
            f"--resource=secrets --resource-name={name}, and bind it to its account (docs/gateway.md)",
            404: ". Create it, or take it out of spec.access; until then its models are closed",
        }
        log.warning("API keys in Secret %s: %s%s", secret, error, remedy.get(error.code, ""))


def parse(secret: Json) -> Digests:
    """The digests of a Secret's values; each value is one key, spaces and line ends around it left out."""
    found = []
    for value in (secret.get("data") or {}).values():
        try:
            key = base64.b64decode(value).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            continue  # a certificate or the like beside the keys: no client can send it
        if key:
            found.append(digest(key))
    return tuple(sorted(found))
