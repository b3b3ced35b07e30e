"""Files that describe a model's tokenizer: those of its folder, or made from a GGUF file's metadata."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wisp_plan.units import format_size
from wisp_runtime.convert.gguf_model import open_gguf, reported
from wisp_runtime.errors import TokenizerUnreadable
from wisp_runtime.sources.listing import MAX_TEXT_BYTES

if TYPE_CHECKING:
    from wisp_plan.gguf.model import GGUFModel

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"


class TokenizerFiles:
    """Files by name, each within its limit.

    A ``tokenizer.json`` beside a GGUF file comes before what the file says, and so do the others beside it.

    Args:
        path: folder of the model, or a GGUF file.

    Attributes:
        folder: folder of the files.

    Raises:
        ModelNotFound, WeightsUnreadable, ModelUnsupported: a GGUF file is missing, damaged or not read.
    """

    def __init__(self, path: Path) -> None:
        model = open_gguf(path)
        self.folder = path if model is None else model.folder
        self._model = None if (self.folder / TOKENIZER).is_file() else model

    def tokenizer(self) -> tuple[Path, bytes]:
        """Return ``tokenizer.json``, and its path for messages.

        Raises:
            TokenizerUnreadable: it is missing or cannot be read.
        """
        path = self.folder / TOKENIZER
        if self._model is not None:
            return self.folder / self._model.metadata.file, self._built(self._model)
        if not path.is_file():
            raise TokenizerUnreadable(f"{path} is missing; Wisp needs the model's tokenizer in this format.")
        return path, _read_bytes(path)

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a file; empty if there is none.

        Raises:
            TokenizerUnreadable: it is no JSON object, or cannot be read.
        """
        if self._model is not None and name == SETTINGS:
            return self._settings
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(_decoded(path))
        except (ValueError, RecursionError) as error:
            raise TokenizerUnreadable(f"{path} is no JSON: {error}. Download or convert it again.") from error
        if not isinstance(content, dict):
            raise TokenizerUnreadable(f"{path} must hold a JSON object. Download or convert it again.")
        return content

    def text(self, name: str) -> str | None:
        """Return a file's text; None if there is none.

        Raises:
            TokenizerUnreadable: it is no UTF-8, or cannot be read.
        """
        path = self.folder / name
        return _decoded(path) if path.is_file() else None

    @property
    def pooling_type(self) -> int | None:
        """Number of the way of pooling that a GGUF file names; None if it names none."""
        if self._model is None:
            return None
        with reported():
            return self._model.metadata.get("{arch}.pooling_type", int)

    def _built(self, model: GGUFModel) -> bytes:
        from wisp_runtime.convert.gguf_tokenizer import tokenizer

        with reported():
            return str(tokenizer(model.metadata).to_str()).encode()

    @cached_property
    def _settings(self) -> dict[str, Any]:
        from wisp_runtime.convert.gguf_tokenizer import tokenizer_config

        assert self._model is not None
        with reported():
            return tokenizer_config(self._model.metadata, self._model.spec.max_context)


def _decoded(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerUnreadable(
            f"{path} is no UTF-8 (byte {error.start}). Download or convert it again."
        ) from error


def _read_bytes(path: Path) -> bytes:
    """Read a file of at most ``MAX_TEXT_BYTES``, wherever the folder comes from."""
    limit_bytes = MAX_TEXT_BYTES[path.name]
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise TokenizerUnreadable(
            f"{path} cannot be read: {error.strerror or error}. Check its permissions and the disk."
        ) from error
    if len(content) > limit_bytes:
        raise TokenizerUnreadable(
            f"{path} has more than {format_size(limit_bytes)}, unlike any model's. "
            "Download or convert it again."
        )
    return content
