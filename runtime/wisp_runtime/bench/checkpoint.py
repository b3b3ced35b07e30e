"""Write a checkpoint of a named shape: random weights of its real size, and a tokenizer that loads as slowly.

For benchmarks of a start from files without a real model. The weights are a pool of random numbers,
repeated, so that writing runs at the disk's speed; a server reads them like any others.
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
        shape: name of :mod:`wisp_plan.presets`.
        folder: target folder, created if missing.
        on_progress: ``on_progress(bytes_done, total_bytes)``.
        seed: seed of the weights.

    Raises:
        DiskFull: too little free space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = shape_config(shape)
    spec = parse_config(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, spec.vocab)
    pool = _Pool(seed)
    shards = list(_shards(list(expected_tensors(spec))))
    total = sum(2 * _elements(tensor) for shard in shards for tensor in shard)
    require_space(folder, total, f"writing a checkpoint of {shape}")
    done, weight_map = 0, dict[str, str]()
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        pending = [PendingTensor(tensor.name, tensor.shape, pool.sampler(tensor)) for tensor in shard]
        on_shard = partial(_further, on_progress, done, total)
        (folder / name).unlink(missing_ok=True)  # left incomplete by an interrupted run
        write_safetensors(folder / name, pending, "BF16", on_shard)
        done += sum(2 * tensor.elements for tensor in pending)
        weight_map |= dict.fromkeys((tensor.name for tensor in shard), name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return done


def is_written(shape: str, folder: Path) -> bool:
    """Return whether ``folder`` holds a complete checkpoint of ``shape``: its index is written last."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except OSError:
        return False
    return bool(config == shape_config(shape)) and (folder / INDEX_FILE).is_file()


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
    """Yield words of two letters, then of three, and so on: each extends an earlier one by a letter."""
    length = 2
    while True:
        for letters in product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)
        length += 1


def _elements(tensor: ExpectedTensor) -> int:
    return int(np.prod(tensor.shape))


def _shards(tensors: list[ExpectedTensor]) -> Iterator[list[ExpectedTensor]]:
    """Group the tensors into files of about 5 GB, as published models do."""
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
    """Pool of random bf16 numbers that all tensors are made of."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._numbers = rng.standard_normal(_POOL_ELEMENTS, np.float32).astype(ml_dtypes.bfloat16)

    def sampler(self, tensor: ExpectedTensor) -> Callable[[], Array]:
        """Return the function that makes a tensor: matrices with variance 1 / inputs, norms about 1."""

        def sample() -> Array:
            size = _elements(tensor)
            pool = self._numbers[: min(size, _POOL_ELEMENTS)].astype(np.float32)
            mean, deviation = (1.0, 0.05) if tensor.role == "norm" else (0.0, tensor.shape[-1] ** -0.5)
            scaled = (mean + deviation * pool).astype(ml_dtypes.bfloat16)
            return np.resize(scaled, tensor.shape)

        return sample
