"""Read a model on this machine: its configs, and headers of safetensors or GGUF files, but no weights."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from wisp_plan.checkpoint.index import (
    INDEX_FILE,
    MAX_INDEX_BYTES,
    SINGLE_FILE,
    Source,
    TensorIndex,
    combine,
    parse_index,
    read_headers,
)
from wisp_plan.errors import CheckpointMissing, ConfigMissing
from wisp_plan.families.config_files import CONFIG_FILE, MAX_CONFIG_BYTES
from wisp_plan.families.generation import (
    GENERATION_FILE,
    MAX_GENERATION_BYTES,
    GenerationConfig,
    parse_generation_text,
)
from wisp_plan.gguf.files import SUFFIX, files_of

if TYPE_CHECKING:
    from wisp_plan.gguf.model import GGUFModel
    from wisp_plan.spec.model import ModelSpec


def gguf_model(path: Path) -> GGUFModel | None:
    """Read the headers of a model in GGUF: a file, or a folder with one such model; None for another folder.

    Raises:
        ConfigMissing: a folder with several.
        CheckpointMissing, HeaderInvalid, FileTruncated: a file is missing or damaged.
        ConfigInvalid: an unsupported model.
    """
    files = files_of(path)
    if not files:
        return None
    from wisp_plan.gguf.model import read_model

    return read_model(files, _source)


def read_config(folder: Path) -> ModelSpec:
    """Parse ``folder/config.json``, or the metadata of a GGUF file.

    Args:
        folder: the folder, or a GGUF file.

    Raises:
        ConfigMissing: it is not there or cannot be opened.
        ConfigInvalid: it is not JSON, or describes an unsupported model.
        CheckpointInvalid: a GGUF file is damaged.
    """
    if model := gguf_model(folder):
        return model.spec
    path = folder / CONFIG_FILE
    try:
        text = _read(path, 0, MAX_CONFIG_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigMissing(f"{path} is not there. Point at a folder that holds a model.") from error
    except OSError as error:
        raise ConfigMissing(f"{path} cannot be read: {error.strerror}.") from error
    from wisp_plan.families.config import (
        parse_config_text,  # every family: the server's process asks for none
    )

    return parse_config_text(text, str(folder), lambda name: _read_beside(folder / name))


def _read_beside(path: Path) -> bytes | None:
    try:
        return _read(path, 0, MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigMissing(f"{path} cannot be read: {error.strerror}.") from error


def read_generation_config(folder: Path, *, has_sampling: bool = True) -> GenerationConfig:
    """Parse ``folder/generation_config.json``; a model without one has no defaults of its own.

    Args:
        folder: folder of the model.
        has_sampling: whether defaults of sampling are read; if not, end tokens alone.

    Raises:
        ConfigMissing: it cannot be opened.
        ConfigInvalid: it is not JSON, or a value is none that a model can mean.
    """
    if model := gguf_model(folder):
        text = json.dumps(model.generation_config).encode()
        return parse_generation_text(text, str(folder), has_sampling=has_sampling)
    path = folder / GENERATION_FILE
    try:
        text = _read(path, 0, MAX_GENERATION_BYTES + 1)
    except FileNotFoundError:
        return GenerationConfig()
    except OSError as error:
        raise ConfigMissing(f"{path} cannot be read: {error.strerror}.") from error
    return parse_generation_text(text, str(folder), has_sampling=has_sampling)


def read_file(path: Path) -> TensorIndex:
    """Read the header of one safetensors file.

    Raises:
        CheckpointMissing: it is not there or cannot be opened.
        HeaderInvalid, FileTruncated: it is damaged.
    """
    try:
        return TensorIndex(read_headers([(path.name, _source(path))]))
    except OSError as error:
        raise CheckpointMissing(f"{path} cannot be read: {error.strerror}.") from error


def read_directory(folder: Path) -> TensorIndex:
    """Read the headers of a folder's checkpoint: ``model.safetensors``, the shards of its index, or its
    only ``*.safetensors`` file; or of a GGUF file.

    Raises:
        CheckpointMissing: there is none, or the index names a shard that is not there.
        HeaderInvalid, FileTruncated: a file is damaged, or files contradict each other.
    """
    if model := gguf_model(folder):
        return model.tensors
    if (folder / SINGLE_FILE).is_file():
        return read_file(folder / SINGLE_FILE)
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return read_file(files[0])
    raise CheckpointMissing(_nothing_to_read(folder, files))


def _read_shards(folder: Path) -> TensorIndex:
    try:
        expected = parse_index(_read(folder / INDEX_FILE, 0, MAX_INDEX_BYTES + 1))
        files = sorted(set(expected.values()))
        _require_files(folder, files)
        return combine(read_headers((file, _source(folder / file)) for file in files), expected)
    except OSError as error:
        raise CheckpointMissing(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def _require_files(folder: Path, files: list[str]) -> None:
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise CheckpointMissing(
            f"{folder}: {len(missing)} of {len(files)} files that {INDEX_FILE} names are missing: "
            f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Download the model again."
        )


def _source(path: Path) -> Source:
    return Source(lambda offset, length: _read(path, offset, length), path.stat().st_size)


def _read(path: Path, offset: int, length: int) -> bytes:
    """Read a range of a regular file; any other kind would block, or never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        file.seek(offset)
        return file.read(length)


def _nothing_to_read(folder: Path, files: list[Path]) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder. Point at a folder that holds a model."
    if files:
        return f"{folder} has {len(files)} .safetensors files but no {INDEX_FILE}. Download the model again."
    others = sorted(p for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", SUFFIX})
    if others:
        named = ", ".join(path.name for path in others[:3])
        ggufs = [path for path in others if path.suffix == SUFFIX]
        remedy = (
            f"Serve the file itself: {ggufs[0]}" if ggufs else "Use a repository with safetensors weights"
        )
        return f"{folder} has no safetensors file, only {named}. {remedy}."
    return f"{folder} has no safetensors file. Point at a folder that holds a model."
