"""Download a model from a hub through ``huggingface_hub``: with progress, and only what is needed.

The library goes on where a connection broke off; after a restart it begins an unfinished file again. It
reads ``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from wisp_runtime.errors import DiskFull, ModelNotFound
from wisp_runtime.loading.disk import require_space

NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "model.safetensors.index.json",
)
_UNNEEDED_FILES = ("*/*", "consolidated*.safetensors")  # other formats and duplicates of the same weights
_SPARE_BYTES = 64 << 20

OnProgress = Callable[[int, int], None]


def download(
    repository: str, revision: str | None, cache_dir: Path, on_progress: OnProgress | None = None
) -> Path:
    """Bring ``repository`` into ``cache_dir``, fetching only what is not there yet; return its folder.

    Args:
        repository: ``ORG/NAME``.
        revision: branch, tag or commit; None is ``main``.
        cache_dir: shared by all models; safe for several processes at once.
        on_progress: ``on_progress(bytes_done, total_bytes)``, from the library's threads.

    Raises:
        ModelNotFound: no such repository or revision, no access, or no connection and nothing cached.
        DiskFull: it does not fit on the disk.
    """
    wanted: dict[str, Any] = {
        "repo_id": repository,
        "revision": revision,
        "cache_dir": cache_dir / "hub",
        "allow_patterns": list(NEEDED_FILES),
        "ignore_patterns": list(_UNNEEDED_FILES),
    }
    with _explained(repository, revision, cache_dir):
        missing = _missing_bytes(wanted)
        if missing is None:
            return Path(huggingface_hub.snapshot_download(**wanted, local_files_only=True))
        require_space(cache_dir, missing + _SPARE_BYTES, f"downloading hf://{repository}")
        return Path(huggingface_hub.snapshot_download(**wanted, tqdm_class=_reporter(missing, on_progress)))


def _missing_bytes(wanted: dict[str, Any]) -> int | None:
    """Return how much is not here yet, or None when the hub cannot be asked."""
    try:
        files = huggingface_hub.snapshot_download(**wanted, dry_run=True, tqdm_class=_reporter(0, None))
    except errors.DryRunError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise error.__cause__ from error
        return None
    return sum(file.file_size or 0 for file in files if file.will_download)


def _reporter(total: int, on_progress: OnProgress | None) -> type[Any]:
    """Make the class whose instances the library treats as its progress bars, and which shows none."""
    lock, bars = Lock(), list[Any]()

    class Reporter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))  # type: ignore[no-untyped-call]
            self.done_bytes = 0
            # Bars of bytes: one of what came from the network, one of what is on the disk, by version.
            self.counts_bytes = kwargs.get("unit") == "B"
            bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts_bytes and on_progress is not None:
                with lock:
                    self.done_bytes += int(n or 0)
                    on_progress(min(total, max(bar.done_bytes for bar in bars)), total)
            return None

    return Reporter


@contextmanager
def _explained(repository: str, revision: str | None, cache_dir: Path) -> Iterator[None]:
    """Turn the library's errors into ours."""
    name, endpoint = f"hf://{repository}", huggingface_hub.constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFound(
            f"{name} is gated: accept its terms at {endpoint}/{repository}, then set HF_TOKEN to your token."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"{name} is not at {endpoint}, or it is private: check the name, or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(f"{name} has no revision {revision!r}: name a branch, tag or commit.") from error
    except errors.HFValidationError as error:
        raise ModelNotFound(
            f"{name} is not a name: write hf://ORG/NAME, as in its page's address."
        ) from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise DiskFull(
                f"the disk of {cache_dir} filled up while {name} was downloaded; free some."
            ) from error
        raise ModelNotFound(
            f"{name} could not be downloaded from {endpoint}, and no whole copy is in {cache_dir}: "
            f"{_first_line(error)} Whole files are kept; start again to go on."
        ) from error


def _first_line(error: BaseException) -> str:
    return (
        f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}".rstrip(".")
        + "."
    )
