"""Write one layer's fixture: tensors, the expected weights, the section of config.json, and versions."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "files"


def weights(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return normal weights of the size of a trained layer's, with a few large ones."""
    random = torch.Generator().manual_seed(seed)
    made = torch.randn(rows, columns, generator=random) * 0.02
    made[torch.rand(rows, columns, generator=random) > 0.995] *= 8
    return made


def save(name: str, packer: str, section: dict, tensors: dict, expected: torch.Tensor) -> None:
    """Write ``files/NAME.safetensors``.

    Args:
        packer: distribution that wrote ``tensors``.
        section: ``quantization_config``.
        tensors: tensors of the layer by the part of their names after ``layer.``.
        expected: ``[N, K]`` float32, the packer's own reading of them.
    """
    stored = {f"layer.{part}": tensor.contiguous() for part, tensor in tensors.items()}
    stored["expected"] = expected.to(torch.float32).contiguous()
    made_by = f"{packer} {version(packer)}, torch {torch.__version__}"
    metadata = {"quantization_config": json.dumps(section), "made_by": made_by}
    save_file(stored, FOLDER / f"{name}.safetensors", metadata)
    print(f"{name}: {sorted(tensors)}, {made_by}")
