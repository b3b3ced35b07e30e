"""API keys of models, read from the Secrets that ``spec.access.apiKeySecretRef`` names.

Each is read by its name (RBAC ``get``, never ``list`` or ``watch``), when a model first names it and every 30
s after. Only digests are kept. Until a Secret was read, no key opens the models that name it; a deleted one
closes them again. One task a Secret, few of them reading at once, namespaces in turn: neither one that gets
no answer nor a namespace with thousands delays the others.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from wisp_gateway.discovery.api_server import ApiError, ApiServer, Json
from wisp_gateway.discovery.key_digests import Keys, ParsedKeys

log = logging.getLogger(__name__)

PERIOD_S = 30.0
RETRY_S = 2.0
MAX_READS = 16
MAX_READS_A_SECOND = 30.0


class SecretKeys:
    """Keys of the Secrets that models name, by ``namespace/name``.

    Args:
        on_change: callback with the name of a Secret whose keys changed or were read for the first time.
    """

    def __init__(self, api: ApiServer, on_change: Callable[[str], None]) -> None:
        self._api = api
        self._on_change = on_change
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tried: dict[str, asyncio.Event] = {}
        self._known: dict[str, Keys] = {}
        self._warnings: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self._reads = asyncio.Semaphore(MAX_READS)

    def watch(self, secrets: Iterable[str]) -> None:
        """Replace the set of Secrets to read."""
        wanted = set(secrets)
        for gone in self._tasks.keys() - wanted:
            self._tasks.pop(gone).cancel()
            self._tried.pop(gone).set()
            self._known.pop(gone, None)
            self._warnings.pop(gone, None)
            self._unreadable.pop(gone, None)
        for secret in _by_turns(wanted - self._tasks.keys()):
            self._tried[secret] = asyncio.Event()
            self._tasks[secret] = asyncio.ensure_future(self._follow(secret))

    def keys(self, secret: str) -> Keys | None:
        """Return the Secret's keys; None until it was read."""
        return self._known.get(secret)

    async def tried(self, timeout_s: float) -> None:
        """Wait until each watched Secret was tried once, at most ``timeout_s``."""
        events = [event.wait() for event in self._tried.values()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*events)
        except TimeoutError:
            late = sum(not event.is_set() for event in self._tried.values())
            log.warning("API keys: %d Secrets were not read within %g s; going on", late, timeout_s)

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.watch(())

    async def _follow(self, secret: str) -> None:
        retry_s = RETRY_S
        while True:
            try:
                async with self._reads:
                    await self._read(secret)
            except Exception:
                log.exception("bug in the gateway (API keys in Secret %s)", secret)
            self._tried[secret].set()
            period_s = max(PERIOD_S, len(self._tasks) / MAX_READS_A_SECOND)
            has_failed = secret in self._warnings
            await asyncio.sleep((min(retry_s, period_s) if has_failed else period_s) * random.uniform(0.8, 1))
            retry_s = 2 * retry_s if has_failed else RETRY_S

    async def _read(self, secret: str) -> None:
        namespace, name = secret.split("/")
        before = self._known.get(secret)
        keys: Keys | None
        try:
            parsed = parse(await self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}"), secret)
        except ApiError as error:
            self._warn(secret, error)
            keys = {} if error.code == 404 and before is not None else before
        else:
            self._warnings.pop(secret, None)
            self._warn_of_lines(secret, parsed.warning)
            keys = parsed.keys
        if keys is not None and keys != before:
            self._known[secret] = keys
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

    def _warn_of_lines(self, secret: str, warning: str) -> None:
        """Log values that cannot be read, once as long as they stay the same."""
        if warning and warning != self._unreadable.get(secret):
            log.warning("%s", warning)
        self._unreadable[secret] = warning


def parse(secret: Json, source: str = "") -> ParsedKeys:
    """Parse the keys of a Secret: each value is one key and its limits, surrounding white space left out."""
    lines = []
    data = secret.get("data")
    for name, value in (data if isinstance(data, dict) else {}).items():
        try:
            key = base64.b64decode(value).decode().strip()
        except (ValueError, TypeError):
            continue  # binary, such as a certificate: no client can send it
        lines.append((name, key, f"value {name}"))
    return ParsedKeys(lines, source, f"API keys in Secret {source}")


def _by_turns(secrets: Collection[str]) -> list[str]:
    """Order Secrets so that every namespace's first comes before any namespace's second."""
    seen: defaultdict[str, int] = defaultdict(int)
    ranks = {}
    for secret in sorted(secrets):
        namespace = secret.partition("/")[0]
        ranks[secret] = seen[namespace]
        seen[namespace] += 1
    return sorted(ranks, key=lambda secret: (ranks[secret], secret))
