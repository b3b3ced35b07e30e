"""A repository of a Hugging Face hub, or of a mirror, as a source of weights.

``huggingface_hub`` handles the API, the token and the proxies, and itself reads ``HF_TOKEN``, ``HF_ENDPOINT``
and ``HF_HUB_OFFLINE``. Its downloads restart after a process dies; those of :mod:`.transfer` resume.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)

from wisp_runtime.errors import AccessDenied, ModelNotFound, RuntimeFailure, SourceUnreachable
from wisp_runtime.sources.listing import Buffer, Listing, RemoteFile, is_needed, malformed

PUBLIC_HUB = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNRESOLVED = re.compile(r"\[Errno -[235]\]|name resolution|getaddrinfo", re.IGNORECASE)
_READ_S = 30.0
_LATER = (408, 425, 429, 500, 502, 503, 504)
_MAX_PAGE_BYTES = 16 << 20
_MAX_ERROR_BYTES = 64 << 10
_PAGE_TIMEOUTS = 3  # total time of a listing, in timeouts of one read


class HubSource:
    """A repository at a branch, tag or commit; see :class:`.listing.Source`."""

    def __init__(self, repository: str, revision: str | None) -> None:
        """Name a repository ``ORG/NAME``; no request is sent yet."""
        self.uri = f"hf://{repository}"
        self._repository, self._endpoint = repository, constants.ENDPOINT
        self.cache_key = "hf--" + repository.replace("/", "--") + _at(self._endpoint)
        self.wanted = revision or constants.DEFAULT_REVISION
        self.pinned: str | None = self.wanted if _COMMIT.fullmatch(self.wanted) else None
        self._commit = ""

    def listing(self, timeout_s: float) -> Listing:
        """Resolve the revision to a commit and list its files; raises as :class:`.listing.Source`."""
        try:
            page = json.loads(self._page(timeout_s))
            commit, siblings = page["sha"], page.get("siblings") or ()
            files = tuple(_file(sibling) for sibling in siblings if is_needed(sibling["rfilename"]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise malformed(self.uri) from error
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise malformed(self.uri)
        self._commit = commit
        return Listing(commit, files)

    def _page(self, timeout_s: float) -> bytes:
        """Request the repository's page, of at most ``_MAX_PAGE_BYTES``."""
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{quote(self.wanted, safe='')}"
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        began_s, page = time.monotonic(), bytearray()
        with self._explained():
            validate_repo_id(self._repository)
            with get_session().stream(
                *("GET", url),
                params={"blobs": True},
                headers=headers,
                follow_redirects=True,
                timeout=timeout_s,
            ) as response:
                _raise_for_status(response)
                for data in response.iter_raw():
                    page += data
                    if len(page) > _MAX_PAGE_BYTES or time.monotonic() - began_s > _PAGE_TIMEOUTS * timeout_s:
                        raise SourceUnreachable(
                            f"{self._endpoint} sends the files of {self.uri} without end, or too slowly. "
                            "Try again later, or check HF_ENDPOINT."
                        )
        return bytes(page)

    def read(self, file: RemoteFile, start: int, stop: int) -> Iterator[Buffer]:
        """Yield a range of a file, following the hub to its storage; raises as :class:`.listing.Source`."""
        path = f"{self._repository}/resolve/{self._commit}/{quote(file.name)}"
        headers = build_hf_headers() | {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with (
            self._explained(),
            get_session().stream(
                "GET", f"{self._endpoint}/{path}", headers=headers, follow_redirects=True, timeout=_READ_S
            ) as response,
        ):
            _raise_for_status(response)
            if response.status_code != 206 and (start or stop < file.size_bytes):
                raise SourceUnreachable(
                    f"{self._endpoint} ignores range requests for {file.name} of {self.uri} "
                    f"(HTTP {response.status_code}). Use a mirror that serves those."
                )
            left = stop - start
            for data in response.iter_raw():
                yield data[:left]
                left -= len(data)
                if left <= 0:
                    return

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the library's errors into ours."""
        try:
            yield
        except (errors.HTTPError, errors.HFValidationError, OSError) as error:  # type: ignore[attr-defined]
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RuntimeFailure:
        page, name = f"{self._endpoint}/{self._repository}", self.uri
        token = "Set HF_TOKEN (on a cluster: key HF_TOKEN of the Secret that spec.model.secretRef names)"
        status = getattr(getattr(error, "response", None), "status_code", None)
        match error:
            case errors.GatedRepoError():
                return AccessDenied(f"{name} is gated: accept its terms at {page} first. {token}.")
            case errors.RevisionNotFoundError():
                return ModelNotFound(f"{name} has no revision {self.wanted!r}: name a branch, tag or commit.")
            case errors.RepositoryNotFoundError() if not _has_token():
                return ModelNotFound(
                    f"{name} is not at {self._endpoint}, or is private. Check the name. {token}."
                )
            case errors.RepositoryNotFoundError() | errors.EntryNotFoundError():
                return ModelNotFound(f"{name} is not at {self._endpoint}, or this token may not see it.")
            case errors.HFValidationError():
                return ModelNotFound(f"{name} is no name: write hf://ORG/NAME, as in its page's address.")
            case errors.OfflineModeIsEnabled():
                return SourceUnreachable(
                    f"{name} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it. Unset it, or fill "
                    "the cache on a machine with a connection: wisp-runtime pull."
                )
        if status in (401, 403):
            return AccessDenied(
                f"{self._endpoint} refuses {name} (HTTP {status}): {_first_line(error)} {token}."
            )
        if status is not None and status not in _LATER:
            return ModelNotFound(f"{self._endpoint} answers HTTP {status} for {name}: {_first_line(error)}")
        return SourceUnreachable(
            f"{name} could not be fetched from {self._endpoint}: {_first_line(error)} Check the connection, "
            "HF_ENDPOINT and HTTPS_PROXY; fetched data is kept."
        )


def _at(endpoint: str) -> str:
    """Return the part of a cache's key that names a hub other than the public one.

    Copies of one hub must not serve for another: each decides what a commit of a repository contains.
    """
    base = endpoint.rstrip("/")
    if base == PUBLIC_HUB:
        return ""
    host = re.sub(r"[^\w.-]+", "-", urlsplit(base).hostname or "")[:60]
    return f"--at-{host}-{hashlib.sha256(base.encode()).hexdigest()[:8]}"


def _raise_for_status(response: Any) -> None:
    """Raise the library's error for a refusal, of which at most ``_MAX_ERROR_BYTES`` are read.

    Raises:
        SourceUnreachable: the refusal's body is not the one of a hub.
    """
    if response.status_code < 400:
        return
    body = bytearray()
    for data in response.iter_raw():
        body += data
        if len(body) > _MAX_ERROR_BYTES:
            body.clear()
            break
    headers = {name: value for name, value in response.headers.items() if name.startswith("x-error")}
    refusal = type(response)(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )
    try:
        hf_raise_for_status(refusal)
    except (AttributeError, TypeError, RecursionError) as error:
        raise SourceUnreachable(f"{response.url.host} answered HTTP {response.status_code}.") from error


def _file(sibling: dict[str, Any]) -> RemoteFile:
    """Read a file of a page.

    Raises:
        LookupError, TypeError, AttributeError, ValueError: the page has another form than a hub's.
    """
    blob, lfs = sibling.get("blobId") or "", sibling.get("lfs")
    size_bytes = sibling.get("size") or 0
    digest = f"sha256:{lfs['sha256']}" if lfs else f"git:{blob}" if blob else ""
    kind, _, expected = digest.partition(":")
    if digest and not {"sha256": _SHA256, "git": _COMMIT}[kind].fullmatch(expected):
        raise ValueError(f"no digest: {digest[:80]}")
    return RemoteFile(sibling["rfilename"], size_bytes, digest, str(blob))


def _has_token() -> bool:
    return huggingface_hub.get_token() is not None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if _UNRESOLVED.search(lines[0]):
        return "its name could not be resolved, as on a machine that is offline."
    return lines[0].rstrip(".:") + "."
