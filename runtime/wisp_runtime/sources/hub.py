"""A repository of a Hugging Face hub, or of a mirror, as a source of weights.

``huggingface_hub`` handles the API, the token and the proxies, and itself reads ``HF_TOKEN``, ``HF_ENDPOINT``
and ``HF_HUB_OFFLINE``. Its downloads restart after a process dies; those of :mod:`.transfer` resume.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from wisp_runtime.errors import AccessDenied, ModelNotFound, RuntimeFailure, SourceUnreachable
from wisp_runtime.sources.listing import Buffer, Listing, RemoteFile, is_needed

_COMMIT = re.compile(r"[0-9a-f]{40}")
_UNRESOLVED = re.compile(r"\[Errno -[235]\]|name resolution|getaddrinfo", re.IGNORECASE)
_READ_S = 30.0
_LATER = (408, 425, 429, 500, 502, 503, 504)


class HubSource:
    """A repository at a branch, tag or commit; see :class:`.listing.Source`."""

    def __init__(self, repository: str, revision: str | None) -> None:
        """Name a repository ``ORG/NAME``; no request is sent yet."""
        self.uri = f"hf://{repository}"
        self.cache_key = "hf--" + repository.replace("/", "--")
        self.wanted = revision or constants.DEFAULT_REVISION
        self.pinned: str | None = self.wanted if _COMMIT.fullmatch(self.wanted) else None
        self._repository, self._endpoint = repository, constants.ENDPOINT
        self._commit = ""

    def listing(self, timeout_s: float) -> Listing:
        """Resolve the revision to a commit and list its files; raises as :class:`.listing.Source`."""
        api = huggingface_hub.HfApi(endpoint=self._endpoint)
        with self._explained():
            info = api.model_info(
                self._repository, revision=self.wanted, files_metadata=True, timeout=timeout_s
            )
        self._commit = str(info.sha)
        files = [_file(sibling) for sibling in info.siblings or () if is_needed(sibling.rfilename)]
        return Listing(self._commit, tuple(files))

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
            hf_raise_for_status(response)
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


def _file(info: Any) -> RemoteFile:
    digest = f"sha256:{info.lfs.sha256}" if info.lfs else f"git:{info.blob_id}" if info.blob_id else ""
    return RemoteFile(info.rfilename, int(info.size or 0), digest, info.blob_id or "")


def _has_token() -> bool:
    return huggingface_hub.get_token() is not None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if _UNRESOLVED.search(lines[0]):
        return "its name could not be resolved, as on a machine that is offline."
    return lines[0].rstrip(".:") + "."
