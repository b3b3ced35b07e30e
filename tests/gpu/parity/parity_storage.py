"""Tensors of a model of transformers as a checkpoint stores them: experts apart or in one, FP8, MXFP4."""

from __future__ import annotations

import re
from typing import Any

import torch

BLOCK = 128
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}}
GROUP = 32
MXFP4 = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

_NAMES = {
    "MixtralForCausalLM": (".block_sparse_moe.", ("w1", "w3", "w2")),
    "": (".mlp.", ("gate_proj", "up_proj", "down_proj")),
}
"""Block, and an expert's projections, by architecture; others are the last."""


def stored_tensors(case: Any, model: Any) -> dict[str, Any]:
    """Return the tensors to store, in bf16, FP8 or MXFP4; the model's weights become what those can hold."""
    tensors = dict(model.named_parameters())
    stored = {name: tensor.detach() for name, tensor in tensors.items()}
    if case.is_split:
        stored = _one_by_one(stored, *_NAMES.get(case.config["architectures"][0], _NAMES[""]))
    corrections = {name: buffer for name, buffer in model.named_buffers() if "correction" in name}
    quantized: dict[str, Any] = {}
    for name, tensor in stored.items():
        if case.is_fp8 and re.search(r"(_proj|experts).*weight$", name) and "in_proj_ba" not in name:
            codes, scales = _in_blocks(tensor)  # views of the model's
            quantized |= {name: codes, f"{name}_scale_inv": scales}
        elif case.is_mxfp4 and tensor.ndim == 3:
            blocks, scales = _in_groups(tensor.transpose(1, 2))
            quantized |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            quantized[name] = tensor.to(torch.bfloat16)
    return {_published(name): tensor.contiguous() for name, tensor in (quantized | corrections).items()}


_PUBLISHED = (
    (r"block_sparse_moe\.experts\.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    (r"block_sparse_moe\.experts\.down_proj", "block_sparse_moe.output_linear.weight"),
    (r"block_sparse_moe\.router\.", "block_sparse_moe.router.layer."),
    (r"^model\.(.*mixer\.|embeddings|norm_f|layers\.\d+\.norm\.)", r"backbone.\1"),
)
"""Names of hybrids of Mamba-2 in transformers' memory, and in published checkpoints."""


def _published(name: str) -> str:
    for pattern, published in _PUBLISHED:
        name = re.sub(pattern, published, name)
    return name


def _one_by_one(tensors: dict[str, Any], block: str, parts: tuple[str, str, str]) -> dict[str, Any]:
    """Return views of the experts' tensors, an expert each."""
    found = {}
    for name, tensor in tensors.items():
        is_mixture = ".experts." in name or name.endswith(".mlp.gate.weight")
        renamed = name.replace(".mlp.", block) if is_mixture else name
        prefix, _, kind = renamed.rpartition(".")
        if kind not in ("gate_up_proj", "down_proj"):
            found[renamed] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
            names = parts[:2] if kind == "gate_up_proj" else parts[2:]
            for part, half in zip(names, halves, strict=True):
                found[f"{prefix}.{expert}.{part}.weight"] = half
    return found


def _in_blocks(matrix: Any) -> tuple[Any, Any]:
    """Round a matrix in place to E4M3 times a scale a block; return codes and scales."""
    rows, columns = (-(-extent // BLOCK) for extent in matrix.shape)
    codes = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            at = (
                slice(row * BLOCK, (row + 1) * BLOCK),
                slice(column * BLOCK, (column + 1) * BLOCK),
            )
            scale = matrix[at].abs().max() / 448
            codes[at] = (matrix[at] / scale).to(torch.float8_e4m3fn)
            scales[row, column] = scale
            matrix[at] = codes[at].float() * scale
    return codes, scales


def _in_groups(rows: Any) -> tuple[Any, Any]:
    """Round rows ``[E, out, in]`` in place to E2M1 with an exponent for 32 columns; return both as bytes."""
    groups = rows.unflatten(-1, (-1, GROUP))
    exponents = torch.floor(torch.log2(groups.abs().amax(dim=-1, keepdim=True))) - 2
    numbers, magnitudes = groups / torch.exp2(exponents), torch.tensor(E2M1)
    codes = (numbers.abs()[..., None] - magnitudes).abs().argmin(dim=-1)
    rows.copy_((magnitudes[codes] * numbers.sign() * torch.exp2(exponents)).flatten(-2))
    codes = codes + 8 * (numbers < 0)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents[..., 0] + 127).to(torch.uint8)
