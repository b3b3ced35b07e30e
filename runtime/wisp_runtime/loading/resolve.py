"""Find a model: a folder as it is, or a repository of a hub, downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from wisp_runtime.errors import ModelNotFound, ModelUnsupported

OnProgress = Callable[[int, int], None]


def resolve(uri: str, revision: str | None, cache_dir: Path, on_progress: OnProgress | None = None) -> Path:
    """Return the folder of the model that ``uri`` names, downloading it if it is not here yet.

    Args:
        uri: a folder, ``file://FOLDER``, or ``hf://ORG/NAME`` with an optional ``@REVISION``.
        revision: a hub's branch, tag or commit; the one in ``uri`` goes first.
        cache_dir: where downloads are kept.
        on_progress: ``on_progress(bytes_done, total_bytes)`` while downloading.

    Raises:
        ModelNotFound: no such folder, repository or revision, or no access to it.
        ModelUnsupported: a scheme that cannot be read here.
        DiskFull: the download would not fit.
    """
    if "://" not in uri:
        return _folder(Path(uri).expanduser())
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return _folder(Path(unquote(rest)))
    if scheme == "hf":
        # Imported here: it costs 0.3 s that a local model need not pay.
        from wisp_runtime.loading.hub import download

        repository, _, named = rest.partition("@")
        return download(repository, named or revision, cache_dir, on_progress)
    raise ModelUnsupported(
        f"{uri}: the scheme {scheme}:// cannot be read; a model is a folder, file://FOLDER or hf://ORG/NAME."
    )


def _folder(path: Path) -> Path:
    if not path.is_dir():
        claim = "is a file, not a folder" if path.exists() else "is not there"
        hint = ""
        if path.suffix == ".gguf":
            hint = f" Convert it first: wisp-runtime convert {path} FOLDER."
        elif not path.exists() and len(path.parts) == 2:
            hint = f" For a model of a hub, write hf://{path}."
        raise ModelNotFound(f"model folder {path} {claim}.{hint or ' Check the path.'}")
    return path.resolve()
