"""Access of one request: the model that it names, and whether its key opens that model or the gateway itself.

A model that a key does not open and a model that does not exist get the same answer, so that nobody learns
which models there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wisp_gateway.discovery.key_digests import NO_KEY, Key, digest
from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import (
    DirectoryOutdated,
    GatewayError,
    KeysUnread,
    ModelNotFound,
    ResponseNotFound,
    Unauthorized,
)
from wisp_gateway.inbound.auth import Keyring, ModelKeys
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.routing.response_ids import tag_of

_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "")
MAX_NAME_CHARS = 200  # of a name that an error repeats
SHOWN_NAMES = 5
MAX_COMPARED = 64  # names among which the nearest is looked for: a millisecond of the event loop
RETRY_S = 2  # of keys, or of models, that could not be read yet


@dataclass(frozen=True)
class Grant:
    """A model that a request may use, and the key that opens it."""

    state: ModelState
    key: Key


@dataclass(frozen=True, slots=True)
class Caller:
    """A client by its API key, which is looked up once a request.

    Attributes:
        given: digest of what it sent as a key; empty: nothing.
        keys: keys of that digest; none: there is no such key.
        host: address of the client.
    """

    given: bytes
    keys: tuple[Key, ...]
    host: str

    @property
    def key_name(self) -> str:
        """Name of its key; empty: it has none, or there is no such key."""
        return self.keys[0].name if self.keys else ""

    @property
    def account(self) -> str:
        """Account of a request's sender: a known key, else the client's address."""
        return f"key:{self.given.hex()}" if self.keys else f"host:{self.host}"


class Access:
    """Decides by keys.

    Args:
        is_loopback_trusted: the gateway's own documents need no key from this machine. Only where all of it
            belongs to one user: in a pod, loopback is also a sidecar or a port-forward.
        is_outdated: reader of whether models may be missing in the snapshot.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        keys: Keyring,
        *,
        is_loopback_trusted: bool,
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        self._registry = registry
        self._keys = keys
        self._is_loopback_trusted = is_loopback_trusted
        self._is_outdated = is_outdated
        self._gathered = ModelKeys.of([])
        self._revision = 0

    def caller(self, token: str, host: str) -> Caller:
        """Look up the key of a client at ``host``."""
        if not token:
            return Caller(b"", (), host)
        given = digest(token)
        return Caller(given, self._keys.find(given, self._model_keys()), host)

    def check_before_body(self, caller: Caller) -> None:
        """Refuse a key that opens nothing before the request's body is read.

        Raises:
            Unauthorized: it is missing or unknown, and every model needs one.
        """
        keys = self._model_keys()
        if not keys.are_read or self._is_any_open(keys):
            return
        if self._is_unknown(caller):
            raise _unauthorized(caller)

    def max_body_bytes(self, caller: Caller, by_path: str | None) -> int | None:
        """Return the limit of bodies that holds whichever model this one names; None: none is known yet."""
        state = self._registry.find(by_path) if by_path is not None else None
        keys = caller.keys
        if state is not None:
            keys = (self._key(caller, state.model) or NO_KEY,)
        elif self._is_any_open(self._model_keys()):
            return None
        sizes = [key.limits.body_bytes for key in keys]
        bounds = [size for size in sizes if size is not None]
        return max(bounds) if bounds and len(bounds) == len(sizes) else None

    def model(self, caller: Caller, by_path: str | None, by_body: str | None) -> Grant:
        """Find the model that the path or the body names; if both do, they must agree.

        Raises:
            Unauthorized, ModelNotFound: it does not exist, or the key does not open it.
            KeysUnread: its Secret could not be read yet.
            DirectoryOutdated: it may exist since a moment.
        """
        name = by_path or by_body or ""
        state = self._registry.find(name)
        key = self._key(caller, state.model) if state is not None else None
        if state is None or key is None:
            raise self._refusal(caller, name, state.model if state is not None else None)
        if by_path is not None and by_body is not None and not _is_called(state.model, by_body):
            raise ModelNotFound(f"Model {by_body[:200]!r} is not served under /{by_path}/v1.", param="model")
        return Grant(state, key)

    def pod(self, caller: Caller, by_path: str | None, response_id: str) -> tuple[ModelState, Pod]:
        """Find the pod that stores a response, if the key opens its model.

        Raises:
            ResponseNotFound: there is none, or the key does not open it: one answer for both.
        """
        state, pod = self._registry.find_pod(tag_of(response_id)) or (None, None)
        is_there = state is not None and by_path in (None, state.model.key)
        if state is None or pod is None or not is_there or self._key(caller, state.model) is None:
            raise ResponseNotFound(
                f"Response {response_id!r} is not stored here. The pod that gave it keeps it in memory, for "
                "a time and until the pod ends: send the request that made it again."
            )
        return state, pod

    def models(self, caller: Caller, by_path: str | None) -> list[ModelState]:
        """List the models that a key opens, or the one of the path.

        Raises:
            Unauthorized, ModelNotFound, KeysUnread: it opens none.
        """
        if by_path is not None:
            return [self.model(caller, by_path, None).state]
        states = self._registry.states()
        opened = [state for state in states if self._key(caller, state.model) is not None]
        if opened or not self._is_unknown(caller):
            return opened
        raise _unauthorized(caller)

    def visible_models(self, caller: Caller) -> frozenset[str] | None:
        """Return the models that a client may read about: all (None), or those that its key guards.

        Raises:
            Unauthorized: none.
        """
        try:
            self.check_gateway(caller)
            return None
        except Unauthorized:
            states = [state for state in self._registry.states() if not self._keys.is_open(state.model)]
            own = frozenset(state.model.key for state in states if self._key(caller, state.model))
            if not caller.given or not own:
                raise
            return own

    def check_gateway(self, caller: Caller) -> None:
        """Check that a client may read the gateway's own documents.

        Raises:
            Unauthorized: it needs a key of the gateway.
        """
        if self._keys.opens_gateway(caller.given):
            return
        if self._is_loopback_trusted and (caller.host in _LOOPBACK or self._opens_everything(caller)):
            return
        raise Unauthorized(
            "This document shows every model, so it needs a key of the gateway's own file (--api-keys; in "
            "the chart gateway.apiKeysSecret), as 'Authorization: Bearer KEY'."
        )

    def _opens_everything(self, caller: Caller) -> bool:
        return bool(caller.keys) and all(
            self._key(caller, state.model) is not None for state in self._registry.states()
        )

    def _key(self, caller: Caller, model: Model) -> Key | None:
        return self._keys.key(caller.given, model)

    def _is_any_open(self, keys: ModelKeys) -> bool:
        """Return True if a model needs no key."""
        return keys.has_open and not self._keys.has_own

    def _refusal(self, caller: Caller, name: str, model: Model | None) -> GatewayError:
        if model is not None and not model.are_keys_read:
            return KeysUnread(
                f"The API keys of model {model.key} could not be read yet. Retry; if it stays so, the "
                "gateway's log says why.",
                retry_after_s=RETRY_S,
            )
        if self._is_unknown(caller):
            return _unauthorized(caller)
        if model is None and self._is_outdated():
            return DirectoryOutdated(
                f"Model {name[:200]!r} is not known here, but the list of models may be outdated: `wisp up` "
                "cannot write it, or does not answer. Retry; if it stays so, its log says why.",
                retry_after_s=RETRY_S,
            )
        shown = repr(name[:MAX_NAME_CHARS])
        if not self._is_key_needed():
            served = [self._registry.public_name(state) for state in self._registry.states()]
            return ModelNotFound(f"Model {shown} does not exist. {_others(name, served)}", param="model")
        return ModelNotFound(
            f"Model {shown} does not exist, or not for this key. GET /v1/models lists those that do.",
            param="model",
        )

    def _is_unknown(self, caller: Caller) -> bool:
        """Return True if something here needs a key, and the caller has none."""
        return self._is_key_needed() and not caller.keys

    def _is_key_needed(self) -> bool:
        """Return True if a key is needed for something here; otherwise every model is open to all."""
        return self._keys.has_own or self._model_keys().has_closed

    def _model_keys(self) -> ModelKeys:
        """Return the keys of all models, gathered anew once the registry has changed."""
        if self._revision != self._registry.revision:
            self._gathered = ModelKeys.of([state.model for state in self._registry.states()])
            self._revision = self._registry.revision
        return self._gathered


def _is_called(model: Model, name: str) -> bool:
    return name in (model.key, model.name, model.served_name, *model.names)


def _others(name: str, served: Sequence[str]) -> str:
    """Return the sentence on the models that are served instead of ``name``: the nearest, or some."""
    if not served:
        return "No model is served here yet."
    lower = {other.lower(): other for other in reversed(served[:MAX_COMPARED])}
    asked = name[:MAX_NAME_CHARS].rpartition("/")[2].lower()
    near = difflib.get_close_matches(asked, lower, n=1) or [other for other in lower if asked in other]
    if near and asked:
        return f"Did you mean {lower[near[0]]!r}? GET /v1/models lists those that do."
    more = f" and {len(served) - SHOWN_NAMES} more, which GET /v1/models lists" * (len(served) > SHOWN_NAMES)
    return f"There are {', '.join(map(repr, served[:SHOWN_NAMES]))}{more}."


def _unauthorized(caller: Caller) -> Unauthorized:
    if not caller.given:
        return Unauthorized("No API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    return Unauthorized("This API key is not valid here. Ask whoever runs this gateway for one.")
