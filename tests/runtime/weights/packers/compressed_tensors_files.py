"""Layers that compressed-tensors' own compressors write and read (see README.md)."""

from __future__ import annotations

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from layer_file import save, weights

CASES = {
    "ct_fp8_channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "ct_fp8_tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "ct_fp8_block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]},
    ),
    "ct_int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "ct_int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
    "ct_int4_zeros": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "ct_int4_channel": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "channel"}),
    "ct_int8_packed": (
        "pack-quantized",
        {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 64},
    ),
    "ct_int8_zeros": (
        "pack-quantized",
        {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "ct_nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "ct_mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    ),
    "ct_mxfp8": ("mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}),
}
PRESETS = {"ct_nvfp4": "NVFP4A16", "ct_mxfp4": "MXFP4A16", "ct_mxfp8": "MXFP8A16"}


def ranges(made: torch.Tensor, settings: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest weight of each block that shares a scale."""
    rows, columns = made.shape
    match settings["strategy"]:
        case "tensor":
            return made.amin().reshape(1), made.amax().reshape(1)
        case "channel":
            return made.amin(1, keepdim=True), made.amax(1, keepdim=True)
        case "block":
            high, wide = settings["block_structure"]
            blocks = made.reshape(rows // high, high, columns // wide, wide)
            return blocks.amin((1, 3)), blocks.amax((1, 3))
        case _:
            groups = made.reshape(rows, -1, settings["group_size"])
            return groups.amin(2), groups.amax(2)


def make(name: str, form: str, settings: dict, seed: int) -> None:
    """Compress a layer, decompress it in float32, and write both."""
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    weights_args = (
        PRESET_SCHEMES[PRESETS[name]]["weights"] if name in PRESETS else QuantizationArgs(**settings)
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights_args, format=form)
    made = weights(16, 96 if settings.get("group_size") != 64 else 128, seed)
    low, high = ranges(made, settings)
    state = {"weight": made}
    if settings["strategy"] == "tensor_group":
        state["weight_global_scale"] = generate_gparam(made.amin(), made.amax())
    scale, zero = calculate_qparams(low, high, weights_args, global_scale=state.get("weight_global_scale"))
    scale = scale.to(torch.bfloat16).float() if form == "pack-quantized" else scale
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    if form.startswith(("nvfp4", "mxfp4")):
        expected = four_bit_floats(stored, scheme, compressor)
    else:
        expected = compressor.decompress(stored, scheme)["weight"]
    is_exact = form == "mxfp8-quantized"  # E4M3 times a power of two fits into bfloat16
    assert expected.dtype == torch.float32 or is_exact, expected.dtype
    if form == "pack-quantized":
        stored["weight_scale"] = scale.to(torch.bfloat16)
    section = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights_args.model_dump(mode="json")}
        },
        "ignore": [],
    }
    save(name, "compressed-tensors", section, stored, expected)


def four_bit_floats(stored: dict, scheme: QuantizationScheme, compressor: type) -> torch.Tensor:
    """Return what the compressor's own functions read, in float32 instead of its bfloat16."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    rows, half = stored["weight_packed"].shape
    numbers = unpack_fp4_from_uint8(stored["weight_packed"], rows, 2 * half, dtype=torch.float32)
    scale = compressor._decompress_scale(stored["weight_scale"], torch.float32)
    return dequantize(
        x_q=numbers,
        scale=scale,
        args=scheme.weights,
        global_scale=stored.get("weight_global_scale"),
        dtype=torch.float32,
    )


if __name__ == "__main__":
    for number, (case, (form_name, arguments)) in enumerate(CASES.items()):
        make(case, form_name, arguments, number)
