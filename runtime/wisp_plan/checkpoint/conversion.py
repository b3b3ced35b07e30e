"""Sentences on GGUF files where a folder of safetensors is wanted: the exact command that converts one.

Pure text, and names of a folder's files; the conversion itself is ``wisp_runtime.convert``.
"""

from __future__ import annotations

import shlex
from pathlib import Path

GGUF_SUFFIX = ".gguf"
_MAX_NAMED = 3


def convert_command(file: Path) -> str:
    """Return the command that converts ``file`` into a folder beside it, named like it: :func:`target_of`."""
    return f"wisp-runtime convert {shlex.quote(str(file))} {shlex.quote(str(target_of(file)))}"


def target_of(file: Path) -> Path:
    """Return the folder that :func:`convert_command` writes."""
    return file.with_suffix("")


def only_gguf(folder: Path) -> str:
    """Return a sentence on a folder without ``config.json`` that has GGUF files; empty if it has none."""
    files = sorted(path for path in folder.iterdir() if path.suffix == GGUF_SUFFIX)
    if not files:
        return ""
    names = ", ".join(file.name for file in files[:_MAX_NAMED])
    others = ", …" if len(files) > _MAX_NAMED else ""
    return (
        f"{folder} holds no config.json, only GGUF ({names}{others}). Convert it first: "
        f"{convert_command(files[0])}; then point at that folder: {target_of(files[0])}."
    )
