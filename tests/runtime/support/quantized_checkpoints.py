"""Writers of quantized layers by the descriptions of their formats: tensors, and the weights they mean.

``write(random, rows, columns)`` returns the tensors of one layer by what follows its name, and the float32
weights. Nothing here calls the code that reads them.
"""

import ml_dtypes
import numpy as np

E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes, bits):
    """Codes ``[…, K]`` packed along the last axis into int32, the first in the lowest bits."""
    per_word = 32 // bits
    lanes = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per_word)
    shifted = lanes << (bits * np.arange(per_word, dtype=np.uint64))
    return shifted.sum(axis=-1, dtype=np.uint64).astype(np.uint32).view(np.int32)


def pairs(codes):
    """Nibbles packed along the last axis into bytes, the even column low."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def wide(values, rows, columns, shape):
    """A value a block, repeated over its block."""
    values = np.asarray(values, np.float32)
    values = np.repeat(values, rows or shape[0], axis=0)[: shape[0]]
    return np.repeat(values, columns or shape[1], axis=1)[:, : shape[1]]


def scales_of(random, rows, columns, shape, dtype=np.float32):
    counts = [
        1 if not block else -(-extent // block) for extent, block in zip(shape, (rows, columns), strict=True)
    ]
    return (0.25 + random.random(counts)).astype(dtype)


def fp8(rows, columns, suffix, dtype=np.float32, squeeze=False):
    """E4M3 with a scale for each block of rows x columns."""

    def write(random, *shape):
        values = random.standard_normal(shape).astype(E4M3)
        scale = scales_of(random, rows, columns, shape, dtype)
        stored = scale.reshape(()) if squeeze else scale
        return {".weight": values, f".weight{suffix}": stored}, values.astype(np.float32) * wide(
            scale, rows, columns, shape
        )

    return write


def exponents(columns, suffix, dtype, values=None):
    """E4M3 or, with ``values`` "e2m1", pairs of E2M1, with a power of two for each group of columns."""

    def write(random, *shape):
        powers = random.integers(120, 131, (shape[0], shape[1] // columns)).astype(np.uint8)
        meant = wide(2.0 ** (powers.astype(np.float32) - 127), 1, columns, shape)
        powers = powers.view(E8M0) if dtype == "F8_E8M0" else powers
        if values is None:
            numbers = random.standard_normal(shape).astype(E4M3)
            return {".weight": numbers, f".weight{suffix}": powers}, numbers.astype(np.float32) * meant
        codes = random.integers(0, 16, shape).astype(np.uint8)
        return {".weight_packed": pairs(codes), f".weight{suffix}": powers}, E2M1[codes] * meant

    return write


def int8(rows, columns):
    def write(random, *shape):
        values, scale = (
            random.integers(-128, 128, shape).astype(np.int8),
            scales_of(random, rows, columns, shape),
        )
        return {".weight": values, ".weight_scale": scale}, values * wide(scale, rows, columns, shape)

    return write


def packed(bits, group, *, is_symmetric=True, is_ordered=False):
    """compressed-tensors' pack-quantized: offset binary along K, zero points along N."""

    def write(random, *shape):
        codes, middle = random.integers(0, 1 << bits, shape), 1 << (bits - 1)
        scale = scales_of(random, 1, group, shape, BF16)
        zero = np.full(scale.shape, middle) if is_symmetric else random.integers(0, 1 << bits, scale.shape)
        groups, stored = column_groups(random, shape[1], group, is_ordered)
        stored |= {"packed": words(codes, bits), "scale": scale, "shape": np.array(shape)}
        if not is_symmetric:
            stored["zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
        meant = (codes - zero[:, groups]) * scale.astype(np.float32)[:, groups]
        return {f".weight_{name}": values for name, values in stored.items()}, meant.astype(np.float32)

    return write


def column_groups(random, columns, group, is_ordered):
    groups = np.arange(columns) // (group or columns)
    if not is_ordered:
        return groups, {}
    random.shuffle(groups)
    return groups, {"g_idx": groups.astype(np.int32)}


def gptq(bits, group, *, is_symmetric=True, version=1, is_ordered=False, has_signs=False):
    """GPTQ: words along K, ``[K, N]``; version 1 stores zero points less one; AutoRound's has signs."""

    def write(random, *shape):
        codes, middle = random.integers(0, 1 << bits, shape), 1 << (bits - 1)
        scale = scales_of(random, 1, group, shape, np.float16)
        if has_signs:
            scale[random.random(scale.shape) < 0.5] *= -1
        zero = np.full(scale.shape, middle) if is_symmetric else random.integers(1, 1 << bits, scale.shape)
        groups, stored = column_groups(random, shape[1], group, is_ordered)
        if not is_ordered:
            stored = {"g_idx": groups.astype(np.int32)}
        stored |= {
            "qweight": words(codes, bits).T,
            "scales": scale.T,
            "qzeros": words((zero - (version == 1)).T, bits),
        }
        meant = (codes - zero[:, groups]) * scale.astype(np.float32)[:, groups]
        return {f".{name}": np.ascontiguousarray(values) for name, values in stored.items()}, meant.astype(
            np.float32
        )

    return write


def awq(group, *, has_zero_points=True):
    """AWQ's gemm: words along N in its own order, ``[K, N / 8]``."""

    def pack(codes):  # [N, G] -> [G, N / 8]
        lanes = codes.T.reshape(codes.shape[1], -1, 8)[:, :, AWQ_ORDER]
        return words(lanes.reshape(codes.shape[1], -1), 4)

    def write(random, *shape):
        codes, scale = random.integers(0, 16, shape), scales_of(random, 1, group, shape, np.float16)
        zero = random.integers(0, 16, scale.shape) if has_zero_points else np.full(scale.shape, 8)
        stored = {"qweight": pack(codes), "scales": np.ascontiguousarray(scale.T)}
        if has_zero_points:
            stored["qzeros"] = pack(zero)
        meant = (codes - wide(zero, 1, group, shape)) * wide(scale, 1, group, shape)
        return {f".{name}": values for name, values in stored.items()}, meant.astype(np.float32)

    return write


def nvfp4(exporter):
    """Pairs of E2M1 with an E4M3 scale for 16 and one for all: modelopt multiplies by that."""

    def write(random, *shape):
        codes = random.integers(0, 16, shape).astype(np.uint8)
        scale = (1 + 3 * random.random((shape[0], shape[1] // 16))).astype(E4M3)
        meant = E2M1[codes] * wide(scale.astype(np.float32), 1, 16, shape)
        if exporter == "modelopt":
            whole = np.array(0.0625, np.float32)
            stored = {".weight": pairs(codes), ".weight_scale": scale, ".weight_scale_2": whole}
            return stored | {".input_scale": np.array(1.0, np.float32)}, meant * whole
        whole = np.array([16.0], np.float32)
        stored = {".weight_packed": pairs(codes), ".weight_scale": scale, ".weight_global_scale": whole}
        return stored, meant / whole

    return write


def _group(form, bits, number, strategy, **more):
    weights = {"num_bits": bits, "type": number, "strategy": strategy, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


def _gptq(bits=4, group=32, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": True, "desc_act": False} | more


_FP8 = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
_MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head"]}
_INT4 = {"group_size": 32, "symmetric": True}

FORMATS = {
    "fp8 block": (_FP8 | {"weight_block_size": [32, 32]}, fp8(32, 32, "_scale_inv")),
    "fp8 block bf16": (_FP8 | {"weight_block_size": [32, 32]}, fp8(32, 32, "_scale_inv", BF16)),
    "fp8 tensor": (_FP8, fp8(0, 0, "_scale", squeeze=True)),
    "fp8 tensor mistral": (_FP8, fp8(0, 0, "_scale_inv", BF16, squeeze=True)),
    "ct fp8 channel": (_group("float-quantized", 8, "float", "channel"), fp8(1, 0, "_scale", BF16)),
    "ct fp8 tensor": (_group("float-quantized", 8, "float", "tensor"), fp8(0, 0, "_scale")),
    "ct fp8 block": (
        _group("float-quantized", 8, "float", "block", block_structure=[32, 32]),
        fp8(32, 32, "_scale"),
    ),
    "ct int8": (_group("int-quantized", 8, "int", "channel"), int8(1, 0)),
    "ct int4": (_group("pack-quantized", 4, "int", "group", **_INT4), packed(4, 32)),
    "ct int4 zeros": (
        _group("pack-quantized", 4, "int", "group", **_INT4 | {"symmetric": False}),
        packed(4, 32, is_symmetric=False),
    ),
    "ct int4 channel": (_group("pack-quantized", 4, "int", "channel"), packed(4, 0)),
    "ct int4 ordered": (
        _group("pack-quantized", 4, "int", "group", **_INT4, actorder="group"),
        packed(4, 32, is_ordered=True),
    ),
    "ct int8 packed": (_group("pack-quantized", 8, "int", "channel"), packed(8, 0)),
    "ct nvfp4": (_group("nvfp4-pack-quantized", 4, "float", "tensor_group"), nvfp4("compressed-tensors")),
    "ct mxfp4": (_group("mxfp4-pack-quantized", 4, "float", "group"), exponents(32, "_scale", "U8", "e2m1")),
    "ct mxfp8": (_group("mxfp8-quantized", 8, "float", "group"), exponents(32, "_scale", "U8")),
    "gptq": (_gptq(), gptq(4, 32)),
    "gptq signed": (_gptq(), gptq(4, 32, has_signs=True)),
    "gptq 8 bits signed": (_gptq(8, -1), gptq(8, 0, has_signs=True)),
    "gptq 8 bits": (_gptq(8, -1), gptq(8, 0)),
    "gptq zeros": (_gptq(sym=False), gptq(4, 32, is_symmetric=False)),
    "gptq v2 zeros": (
        _gptq(sym=False, checkpoint_format="gptq_v2"),
        gptq(4, 32, is_symmetric=False, version=2),
    ),
    "gptq ordered": (_gptq(desc_act=True), gptq(4, 32, is_ordered=True)),
    "awq": (_AWQ, awq(32)),
    "awq symmetric": (_AWQ | {"zero_point": False}, awq(32, has_zero_points=False)),
    "modelopt fp8": (_MODELOPT | {"quant_algo": "FP8"}, fp8(0, 0, "_scale", squeeze=True)),
    "modelopt fp8 rows": (
        _MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        fp8(1, 0, "_scale"),
    ),
    "modelopt nvfp4": (_MODELOPT | {"quant_algo": "NVFP4"}, nvfp4("modelopt")),
    "modelopt mxfp8": (_MODELOPT | {"quant_algo": "MXFP8"}, exponents(32, "_scale", "F8_E8M0")),
}
"""By name: the ``quantization_config``, and the writer of a layer."""
