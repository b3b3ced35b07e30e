"""Compare a quantized checkpoint as transformers reads it with how we do, matrix by matrix.

    python tests/runtime/weights/packers/compare_with_transformers.py FOLDER [--device cuda]

Runs where torch, transformers and compressed-tensors (or another package of the format) are. Transformers
dequantizes to the checkpoint's 16 bits; ours, in float32, is rounded to them for the comparison. A line a
folder, and exit code 1 where a matrix differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from wisp_plan.spec.weight import WeightSource, WeightSpec
from wisp_runtime.models.load import Checkpoint, open_checkpoint, read_spec
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.quantized_rows import read_dequantized


def ours(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return every quantized matrix by the name of its source, float32."""
    tensors, found = checkpoint.tensors.by_name, {}
    with Files(checkpoint.path, checkpoint.tensors.files) as files:
        for weight in checkpoint.weights:
            for source in weight.sources if weight.stored is not None else ():
                chunks = plan_quantized([alone(weight, source)], tensors, 1 << 40)
                found[source.tensor] = np.concatenate([read_dequantized(files, chunk) for chunk in chunks])
    return found


def alone(weight: WeightSpec, source: WeightSource) -> WeightSpec:
    """Return the weight of one source alone."""
    at = (0,) * len(source.at)
    return replace(weight, shape=source.shape, sources=(replace(source, at=at),))


def theirs(folder: Path, device: str) -> dict[str, torch.Tensor]:
    """Return the state dict of transformers' model, dequantized where it is not already."""
    config = transformers.AutoConfig.from_pretrained(folder).quantization_config
    if config["quant_method"] == "compressed-tensors":
        config = transformers.CompressedTensorsConfig(**{**config, "run_compressed": False})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", device_map=device, quantization_config=config
    )
    if any(
        isinstance(value, torch.Tensor) and value.dtype.itemsize < 2 for value in model.state_dict().values()
    ):
        model = model.dequantize()
    return model.state_dict()


def main() -> int:
    """Print the comparison of each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    return max(compare(folder, arguments.device) for folder in arguments.folders)


def compare(folder: Path, device: str) -> int:
    """Compare one checkpoint; return 1 if anything differs."""
    mine = ours(open_checkpoint(folder, read_spec(folder)))
    other = theirs(folder, device)
    differing, worst, dtype = [], 0.0, ""
    for name, values in mine.items():
        read = other[name].cpu()
        dtype = str(read.dtype).removeprefix("torch.")
        rounded = torch.from_numpy(values).to(read.dtype)
        if not torch.equal(rounded, read):
            difference = (rounded.float() - read.float()).abs()
            worst = max(worst, float((difference / read.float().abs().clamp(min=1e-12)).max()))
            differing.append(f"{name} ({int((difference > 0).sum())} of {difference.numel()})")
    verdict = (
        "all equal" if not differing else f"{len(differing)} differ, at most {worst:.2e}: {differing[:3]}"
    )
    print(f"{folder}: {len(mine)} matrices in {dtype}: {verdict}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
