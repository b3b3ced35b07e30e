"""Convert a GGUF file into a Hugging Face folder: safetensors, config, tokenizer.

The folder appears complete or not at all: it is written under another name and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.checkpoint.index import SINGLE_FILE
from wisp_plan.errors import PlanError
from wisp_plan.families.config import parse_config
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.weights.tensors import check_tensors
from wisp_runtime.convert.gguf_config import config, generation_config
from wisp_runtime.convert.gguf_file import GGUFFile
from wisp_runtime.convert.gguf_tensors import pending_tensors
from wisp_runtime.convert.gguf_tokenizer import tokenizer, tokenizer_config
from wisp_runtime.convert.writer import DTYPES, PendingTensor, write_safetensors
from wisp_runtime.errors import ConfigError, ModelUnsupported
from wisp_runtime.sources.disk import require_space

Dtype = Literal["bf16", "f32"]
OnProgress = Callable[[int, int], None]

_SPARE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion."""

    folder: Path
    tensors: int
    parameters: int
    weights_bytes: int


def convert(
    source: Path,
    target: Path,
    *,
    dtype: Dtype = "bf16",
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Converted:
    """Convert the GGUF file ``source`` into the folder ``target``.

    Args:
        source: GGUF file of a Llama-like model with a byte-level BPE tokenizer.
        target: folder that does not exist, or is empty.
        dtype: dtype of the written weights.
        force: replace ``target`` if it exists.
        on_progress: ``on_progress(bytes_done, total_bytes)``, after each tensor.

    Raises:
        ConfigError: ``target`` exists and ``force`` is not given.
        ModelNotFound, WeightsUnreadable: no such file, or it is damaged.
        ModelUnsupported, TokenizerUnreadable: the model cannot be converted.
        DiskFull: too little free space for the result.
    """
    file, stored = GGUFFile(source), dtype.upper()
    if target.exists() and not force and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already. Choose another folder, or replace it with --force.")
    settings = config(file, stored)
    tensors = _tensors(file, settings)
    parameters = sum(tensor.elements for tensor in tensors)
    needed = parameters * DTYPES[stored].itemsize + _SPARE_BYTES
    require_space(target, needed, f"converting {source.name}")
    with _appearing(target) as folder:
        _write_tokenizer(file, folder, settings)
        _write_json(folder / "config.json", settings)
        _write_json(folder / "generation_config.json", generation_config(file))
        written = write_safetensors(folder / SINGLE_FILE, tensors, stored, on_progress or _ignore)
    return Converted(target, len(tensors), parameters, written)


def _tensors(file: GGUFFile, settings: dict[str, object]) -> list[PendingTensor]:
    """List the tensors to write; those of the model that ``settings`` describes.

    Raises:
        ModelUnsupported: the settings are no model's, or the file has other tensors than they need.
    """
    try:
        spec = parse_config(settings)
        attention = spec.mixers(AttentionSpec)[0]
        tensors = list(pending_tensors(file, attention.heads, attention.kv_heads))
        check_tensors(
            spec, {each.name: TensorInfo(each.name, "F32", each.shape, 0, 0, "") for each in tensors}
        )
    except PlanError as error:
        raise ModelUnsupported(f"{file.path}, as config.json and safetensors: {error.message}") from error
    return tensors


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""


def _write_tokenizer(file: GGUFFile, folder: Path, settings: dict[str, object]) -> None:
    tokenizer(file).save(str(folder / "tokenizer.json"))
    longest = settings["max_position_embeddings"]
    assert isinstance(longest, int)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file, longest))


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield a folder to fill, which replaces ``target`` at the end and is deleted after a failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (target.with_name(f".{target.name}.{word}-{os.getpid()}") for word in ("partial", "old"))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if target.exists():
            target.rename(old)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
