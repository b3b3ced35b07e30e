"""Resolve a model's URI to a folder: a local one, or a download from a hub or a bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from wisp_plan.gguf.files import SUFFIX
from wisp_runtime.config import storage_settings
from wisp_runtime.errors import ModelNotFound, ModelUnsupported

if TYPE_CHECKING:
    from wisp_runtime.sources.listing import Source
    from wisp_runtime.sources.publish import OnProgress

_MOUNTED = {"pvc": "a claim's directory", "oci": "an image's files"}


def resolve(uri: str, revision: str | None, cache_dir: Path, on_progress: OnProgress | None = None) -> Path:
    """Return the folder or GGUF file of the model at ``uri``, downloading it if it is not in the cache yet.

    Args:
        uri: a folder or a GGUF file, ``file://PATH``, ``s3://BUCKET/PREFIX``, or ``hf://ORG/NAME`` with an
            optional ``@REVISION``.
        revision: branch, tag or commit of a hub; one in ``uri`` takes precedence.
        cache_dir: folder of downloads (:mod:`.store`).
        on_progress: ``on_progress(bytes_done, total_bytes)`` while downloading.

    Raises:
        ModelNotFound: no such folder, repository, bucket or revision.
        ModelUnsupported: an unsupported scheme.
        RuntimeFailure: a failure of fetching, see :func:`.store.obtain`.
    """
    source = source_of(uri, revision)
    if source is None:
        return _folder(_path(uri))
    from wisp_runtime.sources.store import obtain  # a local model needs no download's code

    return obtain(source, cache_dir, on_progress)


def source_of(uri: str, revision: str | None) -> Source | None:
    """Return the source of ``uri``, or None for a folder or a file.

    Raises:
        ModelUnsupported: an unsupported scheme.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        return None
    # The clients are imported here: each takes 0.1 to 0.4 s, which a local model does not need.
    if scheme == "hf":
        from wisp_runtime.sources.hub import HubSource

        repository, _, named = rest.partition("@")
        return HubSource(repository, named or revision)
    if scheme == "s3":
        from wisp_runtime.sources.s3 import BucketSource

        return BucketSource(rest, storage_settings())
    if scheme in _MOUNTED:
        raise ModelUnsupported(
            f"{uri}: {_MOUNTED[scheme]} must be mounted, which the operator does for a pod. "
            "Name the folder where they are."
        )
    raise ModelUnsupported(
        f"{uri}: the scheme {scheme}:// cannot be read; a model is a folder, a GGUF file, file://PATH, "
        f"hf://ORG/NAME or s3://BUCKET/PREFIX.{_of_page(uri)}"
    )


def _of_page(url: str) -> str:
    """Return the hub's model whose page ``url`` may be; empty if it is none."""
    parts = urlsplit(url)
    names = parts.path.strip("/").split("/")[:2]
    is_page = parts.scheme in ("http", "https") and len(names) == 2
    return f" For a model of a hub, write hf://{'/'.join(names)}." if is_page else ""


def _path(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://"))) if "://" in uri else Path(uri).expanduser()


def _folder(path: Path) -> Path:
    """Return the folder or GGUF file at ``path``, or the only folder in it with a model (an image's)."""
    try:
        if path.suffix == SUFFIX and path.is_file():
            return path.absolute()  # a hub's cache links it to a name without this suffix
        if path.is_dir():
            nested = [] if (path / "config.json").exists() else [*path.glob("*/config.json")]
            return (nested[0].parent if len(nested) == 1 else path).resolve()
        claim = "is a file, not a folder" if path.exists() else "is not there"
    except PermissionError as error:
        raise ModelNotFound(
            f"model folder {path} may not be read by user {os.getuid()}. Let it: chmod -R a+rX {path}."
        ) from error
    hint = "" if path.exists() or path.is_absolute() else _meant(path)
    raise ModelNotFound(f"model folder {path} {claim}.{hint or ' Check the path.'}")


def _meant(path: Path) -> str:
    """Return what a relative path that is not there may have meant; empty if there is no guess."""
    from wisp_plan.presets import SHAPES

    if len(path.parts) == 2:
        return f" For a model of a hub, write hf://{path}."
    if str(path).lower() in SHAPES:
        return (
            f" {path} is a shape, for wisp fit and bench: to serve the model, name its folder, a GGUF file "
            "or hf://ORG/NAME."
        )
    return ""
