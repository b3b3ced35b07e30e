"""Sources of a model's config and the headers of its weights; the weights themselves are not read.

A folder or GGUF file of this machine, or a Hugging Face repository over HTTP range requests: a few hundred
kilobytes suffice for a model of any size.
"""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from wisp_operator.api import ModelSource
from wisp_operator.errors import SourceError
from wisp_plan.checkpoint import directory
from wisp_plan.checkpoint.index import (
    INDEX_FILE,
    MAX_INDEX_BYTES,
    Source,
    TensorIndex,
    read_tensor_index,
)
from wisp_plan.errors import ConfigDamaged
from wisp_plan.families.config import parse_config_text
from wisp_plan.families.config_files import CONFIG_FILE, MAX_CONFIG_BYTES
from wisp_plan.gguf.files import SUFFIX
from wisp_plan.gguf.files import files_of as files_of_gguf
from wisp_plan.json_object import shorten
from wisp_plan.spec.model import ModelSpec

HUB = "https://huggingface.co"
TIMEOUT_S = 15.0
_POINT_AT = (
    "Point spec.model.uri at a folder with a model, or a GGUF file: three slashes and its absolute path, "
    "file:///srv/models/NAME."
)


class Files(Protocol):
    """A model's files, as far as the fit needs them."""

    def config(self) -> ModelSpec:
        """Read ``config.json``; raises PlanError or SourceError."""

    def tensors(self) -> TensorIndex | None:
        """Read the headers of the weights, None where there are none; raises PlanError or SourceError."""


class LocalFolder:
    """A folder or a GGUF file of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self) -> ModelSpec:
        """Read ``config.json``, or a GGUF file's metadata; raises SourceError if there is neither."""
        if not self.folder.is_dir() and not (self.folder.suffix == SUFFIX and self.folder.is_file()):
            what = "is neither a folder nor a GGUF file" if self.folder.exists() else "is not there"
            raise SourceError(f"{self.folder} {what}. {_POINT_AT}")
        if not files_of_gguf(self.folder) and not (self.folder / CONFIG_FILE).is_file():
            raise SourceError(f"{self.folder} holds no {CONFIG_FILE} and no GGUF file. {_POINT_AT}")
        return directory.read_config(self.folder)

    def tensors(self) -> TensorIndex:
        """Read the headers of the weights."""
        return directory.read_directory(self.folder)


class HubRepository:
    """A repository of a Hugging Face hub, or of a mirror of it."""

    def __init__(self, name: str, *, revision: str = "", endpoint: str = "", token: str = "") -> None:
        """Name a repository; nothing is read yet.

        Args:
            name: ``ORG/NAME``.
            revision: branch, tag or commit; empty for the default branch.
            endpoint: base URL of the hub (``HF_ENDPOINT``); empty for huggingface.co.
            token: sent to the hub, but not to the storage it redirects to.

        Raises:
            SourceError: the endpoint is not an HTTP URL.
        """
        base = (endpoint or HUB).rstrip("/")
        if urlsplit(base).scheme not in ("http", "https"):
            raise SourceError(f"HF_ENDPOINT is {base!r}; it must be an http:// or https:// URL.")
        self.name = name
        self._base = f"{base}/{quote(name)}/resolve/{quote(revision or 'main', safe='')}/"
        self._token = token

    def config(self) -> ModelSpec:
        """Read ``config.json``."""
        try:
            text = self._read_text("config.json", MAX_CONFIG_BYTES)
        except FileNotFoundError as error:
            raise SourceError(
                f"hf://{self.name} has no config.json, so it is not a model Wisp can run."
            ) from error
        try:
            return parse_config_text(text, f"hf://{self.name}", self._read_beside)
        except ConfigDamaged as error:  # perhaps of the hub's answer alone
            raise SourceError(error.message) from error

    def tensors(self) -> TensorIndex:
        """Read the headers of the weights."""
        try:
            index = self._read_text(INDEX_FILE, MAX_INDEX_BYTES)
        except FileNotFoundError:
            index = None
        return read_tensor_index(self._open, index)

    def _read_beside(self, file: str) -> bytes | None:
        try:
            return self._read_text(file, MAX_CONFIG_BYTES)
        except FileNotFoundError:
            return None

    def _read_text(self, file: str, limit_bytes: int) -> bytes:
        """Read a file, of a longer one a byte more than the limit: its parser refuses it."""
        return self._get(file, 0, limit_bytes + 1)[0]

    def _open(self, file: str) -> Source:
        _, length = self._get(file, 0, 1)
        return Source(lambda offset, count: self._get(file, offset, count)[0], length)

    def _get(self, file: str, offset: int, count: int) -> tuple[bytes, int | None]:
        """Read ``count`` bytes of a file, fewer at its end; and the file's length if the server says it.

        Raises:
            FileNotFoundError: there is no such file.
            SourceError: anything else.
        """
        request = urllib.request.Request(self._base + quote(file))
        request.add_header("Range", f"bytes={offset}-{offset + count - 1}")
        request.add_header("Accept-Encoding", "identity")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                return _requested_range(answer, offset, count)
        except urllib.error.HTTPError as error:
            raise self._refused(file, error.code) from error
        except (OSError, HTTPException) as error:
            raise SourceError(
                f"{file} of hf://{self.name} could not be read from {self._base}: {_cause(error)}."
            ) from error

    def _refused(self, file: str, code: int) -> Exception:
        if code == 404:
            return FileNotFoundError(file)
        if code in (401, 403):
            return SourceError(
                f"hf://{self.name} is private, gated or does not exist (HTTP {code}). Check the name, "
                "accept its licence on the hub, and put a token into key HF_TOKEN of spec.model.secretRef."
            )
        return SourceError(f"{file} of hf://{self.name}: {self._base} answered HTTP {code}. Try again later.")


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects to a hub's storage; urllib's own would follow one to ``ftp:`` as well."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"it redirects to {shorten(newurl)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_WebRedirects())


def _cause(error: Exception) -> str:
    """Cause of a failed request in words; "[Errno -2]" becomes its meaning."""
    why = getattr(error, "reason", error)
    if isinstance(why, socket.gaierror):
        return "its name could not be resolved. Is this machine offline? HF_ENDPOINT names a mirror"
    return str(getattr(why, "strerror", None) or why).lower()


def _requested_range(answer: Any, offset: int, count: int) -> tuple[bytes, int | None]:
    """Take the asked part of an answer; a server that ignores ranges sends the file from its start."""
    if answer.status == 206:
        total = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        return answer.read(count), int(total[1]) if total else None
    length = answer.headers.get("Content-Length", "")
    body: bytes = answer.read(offset + count)
    return body[offset:], int(length) if length.isdigit() else None


def files_of(
    source: ModelSource, *, endpoint: str = "", token: str = "", sees_node: bool = True
) -> Files | None:
    """Choose the source of a model's headers before a pod exists.

    Args:
        source: ``spec.model``.
        endpoint, token: base URL and token of the hub.
        sees_node: true if ``file://`` means a directory of this process too, as on one machine; an operator
            in a pod does not see the node's.

    Returns:
        None for what only a pod can read: ``s3://``, ``pvc://``, ``oci://``, and a node's ``file://``.
    """
    match source.scheme:
        case "file" if sees_node:
            return LocalFolder(Path(source.location))
        case "hf":
            revision = source.revision or ""
            return HubRepository(source.location, revision=revision, endpoint=endpoint, token=token)
        case _:
            return None
