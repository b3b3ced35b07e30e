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

from wisp_plan.checkpoint.index import SINGLE_FILE
from wisp_plan.errors import PlanError
from wisp_plan.gguf.files import SUFFIX
from wisp_plan.gguf.model import GGUFModel
from wisp_plan.weights.tensors import check_tensors
from wisp_runtime.convert.gguf_model import open_gguf, reported
from wisp_runtime.convert.gguf_tensors import pending_tensors
from wisp_runtime.convert.gguf_tokenizer import tokenizer, tokenizer_config
from wisp_runtime.convert.writer import DTYPES, write_safetensors
from wisp_runtime.errors import ConfigError, ModelNotFound, ModelUnsupported
from wisp_runtime.sources.disk import require_space
from wisp_runtime.weights.files import Files

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
    model, stored = _open(source), dtype.upper()
    if target.exists() and not force and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already. Choose another folder, or replace it with --force.")
    _check(model, source)
    settings = model.config | {"torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[stored]}
    with Files(model.folder, model.tensors.files) as files:
        tensors = list(pending_tensors(model, files))
        parameters = sum(tensor.elements for tensor in tensors)
        needed = parameters * DTYPES[stored].itemsize + _SPARE_BYTES
        require_space(target, needed, f"converting {source.name}")
        with _appearing(target) as folder:
            with reported():
                _write_tokenizer(model, folder)
                _write_json(folder / "generation_config.json", model.generation_config)
            _write_json(folder / "config.json", settings)
            written = write_safetensors(folder / SINGLE_FILE, tensors, stored, on_progress or _ignore)
    return Converted(target, len(tensors), parameters, written)


def _open(source: Path) -> GGUFModel:
    if not source.is_file():
        raise ModelNotFound(f"{source} is not a file. Name a .gguf file.")
    if source.suffix != SUFFIX:
        raise ModelNotFound(f"{source} does not end in {SUFFIX}. Name a {SUFFIX} file.")
    model = open_gguf(source)
    assert model is not None
    return model


def _check(model: GGUFModel, source: Path) -> None:
    """Refuse a file that lacks tensors of its model, or has them in other shapes.

    Raises:
        ModelUnsupported: it does.
    """
    try:
        check_tensors(model.spec, model.tensors.by_name)
    except PlanError as error:
        raise ModelUnsupported(f"{source}: {error.message}") from error


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""


def _write_tokenizer(model: GGUFModel, folder: Path) -> None:
    tokenizer(model.metadata).save(str(folder / "tokenizer.json"))
    settings = tokenizer_config(model.metadata, model.spec.max_context)
    _write_json(folder / "tokenizer_config.json", settings)


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
