"""The folder that a checkpoint is quantized into: its owner, its state, and its files beside the weights.

While it is filled it holds ``.wisp-quantize`` and no ``config.json``, so nothing takes it for a model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wisp_plan.checkpoint.index import TensorIndex
from wisp_runtime.errors import ConfigError, DiskFull
from wisp_runtime.quantize.durable_file import durable_file
from wisp_runtime.quantize.shards import is_weights, remove_partials

STATE_FOLDER = ".wisp-quantize"
_SETTINGS, _LOCK = "settings.json", "lock"
_CONFIG = "config.json"
VERSION = 1
"""Version of the results; raise it when they change, so that an older unfinished run is not continued."""

Settings = Mapping[str, object]


@contextmanager
def disk_failures(target: Path) -> Iterator[None]:
    """Name what could not be written inside.

    Raises:
        DiskFull: the disk has no space left.
        ConfigError: another failure of the disk, or no permission.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"{where}: no space is left on the disk. Free some and repeat the command: it goes on."
            ) from error
        raise ConfigError(
            f"{where} cannot be written or read: {error.strerror}. Choose another folder."
        ) from error


@contextmanager
def open_target(target: Path, settings: Settings) -> Iterator[Path]:
    """Hold ``target`` for one process; yield its state folder, which :func:`finish` deletes.

    Args:
        target: a new or empty folder, or one that the same settings left unfinished.
        settings: all that decides the result.

    Raises:
        ConfigError: the folder holds something else, or another process fills it.
    """
    state = target / STATE_FOLDER
    if target.exists() and not state.is_dir() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} is there already, and is no unfinished quantization. Choose another folder, or "
            "delete it."
        )
    state.mkdir(parents=True, exist_ok=True)
    with (state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process is quantizing into {target}. Wait for it, or choose another folder."
            ) from error
        _check_settings(target, state / _SETTINGS, settings)
        remove_partials(target)
        yield state


def _check_settings(target: Path, path: Path, settings: Settings) -> None:
    text = json.dumps(settings, indent=1, sort_keys=True)
    if not any(target.glob("*.safetensors")) and not any(path.parent.glob("*.npz")):
        _write(path, text)
        return
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if not before.strip("\0"):
        raise ConfigError(
            f"{target} holds an unfinished quantization whose settings are lost ({path.name}). Delete it, or "
            "choose another folder."
        )
    if before != text:
        names = ", ".join(_changed(before, settings)) or "settings"
        raise ConfigError(
            f"{target} holds an unfinished quantization with other {names}. Run that command again, choose "
            "another folder, or delete it."
        )


def _changed(before: str, settings: Settings) -> list[str]:
    try:
        old = json.loads(before)
        return [name for name in settings if old.get(name) != settings[name]]
    except (ValueError, AttributeError):
        return []


def finish(
    source: Path, target: Path, config: Mapping[str, object], index: Mapping[str, object] | None
) -> None:
    """Write all that is not weights, ``config.json`` last, and give the folder away.

    Args:
        source, target: folders of the models.
        config: the new ``config.json``.
        index: the index of the shards; None: there is one file.
    """
    for path in sorted(source.iterdir()):
        is_hidden = path.name.startswith(".")
        if path.is_file() and not is_hidden and not is_weights(path.name) and path.name != _CONFIG:
            with path.open("rb") as read, durable_file(target / path.name) as written:
                shutil.copyfileobj(read, written)
    if index is not None:
        _write(target / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    _write(target / _CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    shutil.rmtree(target / STATE_FOLDER)


def fingerprint(source: Path, tensors: TensorIndex) -> str:
    """Return a digest of a checkpoint's headers, and of its files' sizes and times."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tensor).encode())
    for file in (*tensors.files, _CONFIG):
        status = (source / file).stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _write(path: Path, text: str) -> None:
    with durable_file(path) as file:
        file.write(text.encode())
