"""Write a checkpoint of a named shape: random weights of its real size, and a tokenizer that loads as slowly.

For measuring a start from files where no real model can be had. The weights are drawn once and repeated, so
writing runs at the disk's speed; a server reads them like any others.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from wisp_plan.checkpoint.index import INDEX_FILE
from wisp_plan.families.config import parse_config
from wisp_plan.presets import shape_config
from wisp_plan.weights.tensors import ExpectedTensor, expected_tensors
from wisp_runtime.batch import Array
from wisp_runtime.convert.writer import PendingTensor, write_safetensors
from wisp_runtime.sources.disk import require_space

OnProgress = Callable[[int, int], None]
_SHARD_BYTES = 5 << 30
_POOL_ELEMENTS = (1 << 24) + 8191  # odd, so that rows of any length begin elsewhere in it


def write_checkpoint(shape: str, folder: Path, on_progress: OnProgress, seed: int = 0) -> int:
    """Write config, tokenizer and safetensors of ``shape`` into ``folder``; return the bytes of the weights.

    Args:
        shape: a name of :mod:`wisp_plan.presets`.
        folder: made if it is not there.
        on_progress: ``on_progress(bytes_done, total_bytes)``.
        seed: of the weights.

    Raises:
        DiskFull: there is no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = shape_config(shape)
    spec = parse_config(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, spec.vocab)
    pool = _Pool(seed)
    shards = list(_shards(list(expected_tensors(spec))))
    total = sum(2 * _elements(one) for shard in shards for one in shard)
    require_space(folder, total, f"writing a checkpoint of {shape}")
    done, weight_map = 0, dict[str, str]()
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        pending = [PendingTensor(one.name, one.shape, pool.drawer(one)) for one in shard]
        on_part = partial(_further, on_progress, done, total)
        (folder / name).unlink(missing_ok=True)  # half of it, from a time that was interrupted
        write_safetensors(folder / name, pending, "BF16", on_part)
        done += sum(2 * one.elements for one in pending)
        weight_map |= dict.fromkeys((one.name for one in shard), name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return done


def is_written(shape: str, folder: Path) -> bool:
    """Say whether ``folder`` holds a whole checkpoint of ``shape``: its index is written last."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except OSError:
        return False
    return bool(found == shape_config(shape)) and (folder / INDEX_FILE).is_file()


def _further(on_progress: OnProgress, before: int, total: int, done: int, _file_bytes: int) -> None:
    on_progress(before + done, total)


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a byte-level BPE tokenizer of ``vocab`` tokens, 256 at least: bytes, and words made by merges."""
    tokens = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[str] = []
    for word in _words():
        if len(tokens) >= vocab:
            break
        tokens[word] = len(tokens)
        merges.append(f"{word[:-1]} {word[-1]}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": tokens, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def _words() -> Iterator[str]:
    """Yield words of two letters, then of three, and so on: each begins with one that came before."""
    length = 2
    while True:
        for letters in product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)
        length += 1


def _elements(tensor: ExpectedTensor) -> int:
    return int(np.prod(tensor.shape))


def _shards(tensors: list[ExpectedTensor]) -> Iterator[list[ExpectedTensor]]:
    """Cut the tensors into files of about 5 GB, as published models are."""
    shard: list[ExpectedTensor] = []
    size = 0
    for tensor in tensors:
        shard.append(tensor)
        size += 2 * _elements(tensor)
        if size >= _SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


class _Pool:
    """Random bf16 numbers that all tensors are cut from."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._numbers = draw.standard_normal(_POOL_ELEMENTS, np.float32).astype(ml_dtypes.bfloat16)

    def drawer(self, tensor: ExpectedTensor) -> Callable[[], Array]:
        """Return what makes a tensor: matrices with a variance of 1 over their inputs, norms about 1."""

        def draw() -> Array:
            size = _elements(tensor)
            pool = self._numbers[: min(size, _POOL_ELEMENTS)].astype(np.float32)
            mean, deviation = (1.0, 0.05) if tensor.role == "norm" else (0.0, tensor.shape[-1] ** -0.5)
            scaled = (mean + deviation * pool).astype(ml_dtypes.bfloat16)
            return np.resize(scaled, tensor.shape)

        return draw
