"""Checkpoints with random weights in formats that `wisp-runtime quantize` does not make.

    python tests/bench/peer/random_weights.py SHAPE FORMAT FOLDER        mxfp4 or fp8_block

Numbers are a pool of random codes, repeated; scales give every weight a variance of about 1 / inputs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

POOL_BYTES = (1 << 26) + 8191  # odd, so that rows of any length begin elsewhere in it
_BLOCK = 128
E2M1_DEVIATION = math.sqrt(8.5625)  # of codes that are equally likely
_GROUP = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
SECTIONS: dict[str, dict[str, Any]] = {
    "fp8_block": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [_BLOCK, _BLOCK],
    },
    "mxfp4": {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "mxfp4-pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_GROUP, "dynamic": False, "scale_dtype": "torch.uint8"},
                "input_activations": None,
                "output_activations": None,
                "format": "mxfp4-pack-quantized",
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    },
}


@dataclass(frozen=True)
class Stored:
    """A tensor of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    data: np.ndarray
    """Bytes, repeated until ``size``."""


class Writer:
    """Writer of one checkpoint."""

    def __init__(self, form: str, pool_bytes: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        numbers = random.standard_normal(pool_bytes // 4, np.float32)
        self._form, self._normal = form, numbers
        if form == "fp8_block":
            self._codes = np.tile((64 * numbers).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), 4)
        else:
            self._codes = random.integers(0, 256, pool_bytes, np.uint8)

    def projection(self, name: str, shape: tuple[int, int]) -> Iterator[Stored]:
        """Yield the tensors of one weight."""
        rows, columns = shape
        if self._form == "fp8_block":
            scales = (-(-rows // _BLOCK), -(-columns // _BLOCK))
            yield Stored(name, "F8_E4M3", shape, rows * columns, self._codes)
            value = np.array([columns**-0.5 / 64], np.float32).view(np.uint8)
            yield Stored(f"{name}_scale_inv", "F32", scales, 4 * math.prod(scales), value)
        else:
            exponent = 127 - round(math.log2(E2M1_DEVIATION * columns**0.5))
            yield Stored(f"{name}_packed", "U8", (rows, columns // 2), math.prod(shape) // 2, self._codes)
            scales, power = (rows, columns // 32), np.array([exponent], np.uint8)
            yield Stored(f"{name}_scale", "U8", scales, math.prod(scales), power)

    def plain(self, name: str, shape: tuple[int, ...], *, is_norm: bool) -> Stored:
        """Return a tensor that stays bf16."""
        mean, deviation = (1.0, 0.05) if is_norm else (0.0, shape[-1] ** -0.5)
        values = (mean + deviation * self._normal[: math.prod(shape)]).astype(ml_dtypes.bfloat16)
        return Stored(name, "BF16", shape, 2 * math.prod(shape), values.view(np.uint8))


def write(shape: str, form: str, folder: Path, pool_bytes: int = POOL_BYTES) -> int:
    """Write config, tokenizer and a file a layer; return the bytes of the weights."""
    from wisp_plan.families.config import parse_config
    from wisp_plan.presets import shape_config
    from wisp_plan.weights.tensors import expected_tensors
    from wisp_runtime.bench.checkpoint import write_tokenizer

    folder.mkdir(parents=True)
    config = shape_config(shape)
    spec, writer = parse_config(config), Writer(form, pool_bytes)
    write_tokenizer(folder, spec.vocab)
    files: dict[str, list[Stored]] = {}
    for tensor in expected_tensors(spec):
        parts = tensor.name.split(".")
        layer = parts[2] if "layers" in parts else "rest"
        stored = (
            list(writer.projection(tensor.name, tensor.shape))
            if tensor.role == "projection"
            else [writer.plain(tensor.name, tensor.shape, is_norm=tensor.role == "norm")]
        )
        files.setdefault(f"model-{layer}.safetensors", []).extend(stored)
    total = sum(write_file(folder / name, tensors) for name, tensors in files.items())
    names = {tensor.name: name for name, tensors in files.items() for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": SECTIONS[form]}))
    return total


def write_file(path: Path, tensors: list[Stored]) -> int:
    """Write a safetensors file; return the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            pool = (
                np.resize(tensor.data, max(1 << 20, tensor.data.size))
                if tensor.data.size < 1 << 20
                else tensor.data
            )
            for begin in range(0, tensor.size, pool.size):
                file.write(pool[: tensor.size - begin].data)
    return end


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
