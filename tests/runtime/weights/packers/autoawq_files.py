"""Layers that AutoAWQ's ``WQLinear_GEMM`` packs and its ``packing_utils`` unpacks (see README.md)."""

from __future__ import annotations

import torch
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm, reverse_awq_order, unpack_awq
from layer_file import save, weights

ROWS, COLUMNS = 32, 64


def make(name: str, group: int, seed: int, *, is_symmetric: bool) -> None:
    """Quantize a layer as AutoAWQ does, have it packed, unpacked, and written."""
    groups = weights(ROWS, COLUMNS, seed).reshape(ROWS, -1, group)
    if is_symmetric:
        scales = groups.abs().amax(2) / 7
        zeros = torch.full_like(scales, 8.0)
    else:
        low, high = groups.amin(2), groups.amax(2)
        scales = (high - low).clamp(min=1e-5) / 15
        zeros = (-torch.round(low / scales)).clamp(0, 15)
    scales = scales.half().float()
    codes = (torch.round(groups / scales[..., None]) + zeros[..., None]).clamp(0, 15)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = ((codes - zeros[..., None]) * scales[..., None]).reshape(ROWS, COLUMNS)
    packed = WQLinear_GEMM.from_linear(linear, 4, group, scales=scales.T, zeros=zeros.T)
    expected = unpacked(packed, group)
    in_half = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, group)
    assert torch.equal(expected.half(), in_half.T), "AutoAWQ's own reading in float16"
    section = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    tensors = {part: getattr(packed, part) for part in ("qweight", "qzeros", "scales")}
    save(name, "autoawq", section, tensors, expected)


def unpacked(packed: WQLinear_GEMM, group: int) -> torch.Tensor:
    """Return ``[N, K]`` by AutoAWQ's own functions, in float32 where its dequantization is in float16."""
    codes, zeros = unpack_awq(packed.qweight, packed.qzeros, 4)
    codes, zeros = reverse_awq_order(codes, zeros, 4)
    numbers = (codes & 15).float() - (zeros & 15).float().repeat_interleave(group, dim=0)
    return (numbers * packed.scales.float().repeat_interleave(group, dim=0)).T


if __name__ == "__main__":
    make("awq_zeros", 32, 1, is_symmetric=False)
    make("awq_symmetric", 64, 2, is_symmetric=True)
