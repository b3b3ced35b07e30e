"""Layers that GPTQModel's ``TorchLinear`` packs and dequantizes (see README.md)."""

from __future__ import annotations

import torch
from gptqmodel import QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from layer_file import save, weights

ROWS, COLUMNS = 32, 64
CASES = {
    "gptq_v1": {},
    "gptq_v1_zeros": {"sym": False},
    "gptq_v2_zeros": {"sym": False, "checkpoint_format": "gptq_v2"},
    "gptq_ordered": {"desc_act": True},
    "gptq_ordered_zeros": {"desc_act": True, "sym": False},
    "gptq_8_bits": {"bits": 8, "group_size": -1},
}


def make(name: str, changed: dict, seed: int) -> None:
    """Quantize a layer to the nearest, have it packed, dequantized, and written in its version's zeros."""
    section = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False, "checkpoint_format": "gptq"}
    section |= changed
    bits, random = section["bits"], torch.Generator().manual_seed(seed)
    group = section["group_size"] if section["group_size"] > 0 else COLUMNS
    order = torch.arange(COLUMNS) // group
    if section["desc_act"]:
        order = order[torch.randperm(COLUMNS, generator=random)]
    made = weights(ROWS, COLUMNS, seed)
    scales, zeros = qparams(made, order, bits, is_symmetric=section["sym"])
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    codes = (torch.round(made / scales[:, order]) + zeros[:, order]).clamp(0, 2**bits - 1)
    linear.weight.data = (codes - zeros[:, order]) * scales[:, order]
    module = TorchLinear(
        bits=bits,
        group_size=section["group_size"],
        sym=section["sym"],
        desc_act=section["desc_act"],
        in_features=COLUMNS,
        out_features=ROWS,
    )
    module.pack_original(linear, scales, zeros, order.to(torch.int32))
    module.scales, half = module.scales.float(), module.scales
    expected = module.dequantize_weight().T
    module.scales = half
    if section["checkpoint_format"] == "gptq":
        convert_gptq_v2_to_v1_format_module(module, QuantizeConfig(bits=bits, group_size=group))
    tensors = {part: getattr(module, part) for part in ("qweight", "qzeros", "scales", "g_idx")}
    tensors["g_idx"] = tensors["g_idx"].to(torch.int32)
    save(name, "gptqmodel", {"quant_method": "gptq", **section}, tensors, expected)


def qparams(
    made: torch.Tensor, order: torch.Tensor, bits: int, *, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points ``[N, groups]``; zero points of 1 and more, which version 1 can store."""
    scales, zeros = [], []
    for group in range(int(order.max()) + 1):
        part = made[:, order == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if is_symmetric:
            scales.append(part.abs().amax(1) / (2 ** (bits - 1) - 0.5))
            zeros.append(torch.full_like(scales[-1], 2 ** (bits - 1)))
        else:
            scales.append((high - low) / (2**bits - 1))
            zeros.append(torch.round(-low / scales[-1]).clamp(1, 2**bits - 1))
    return torch.stack(scales, 1).half().float(), torch.stack(zeros, 1)


if __name__ == "__main__":
    for number, (case, keys) in enumerate(CASES.items()):
        make(case, keys, number)
