"""Tensors of a Llama GGUF under Hugging Face's names: dequantised, rows in Hugging Face's RoPE order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import gguf
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.convert.gguf_file import GGUFFile
from wisp_runtime.convert.writer import PendingTensor
from wisp_runtime.errors import ModelUnsupported

_OF_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def pending_tensors(source: GGUFFile, heads: int, kv_heads: int) -> Iterator[PendingTensor]:
    """Yield every tensor of the model, computed when it is written.

    Args:
        source: the GGUF file.
        heads, kv_heads: Hq and Hkv, for the row permutation of q and k.

    Raises:
        ModelUnsupported: a tensor of an unknown name, or of an unsupported quantisation.
    """
    for name, tensor in source.tensors.items():
        kind = tensor.tensor_type
        if kind not in gguf.quants._type_traits and kind.name not in ("F32", "F16"):
            raise ModelUnsupported(
                f"{source.path}: {name} is quantised as {kind.name}, which is not supported. "
                "Use a file of another quantisation, such as Q8_0 or Q4_K_M."
            )
        target = _name(source, name)
        order = heads if "q_proj" in target else kv_heads if "k_proj" in target else 0
        shape = tuple(int(size) for size in reversed(tensor.shape))
        yield PendingTensor(target, shape, partial(_values, tensor, shape, order))


def _name(source: GGUFFile, name: str) -> str:
    if name in _OF_MODEL:
        return _OF_MODEL[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _OF_LAYER:
        raise ModelUnsupported(
            f"{source.path}: the tensor {name} is not one of a Llama model; this model cannot be converted."
        )
    return f"model.layers.{match[1]}.{_OF_LAYER[match[2]]}.{match[3]}"


def _values(tensor: Any, shape: tuple[int, ...], heads: int) -> Array:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    return half_split(values.reshape(shape), heads) if heads else values.reshape(shape)


def half_split(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's row permutation of a head: pairs ``0 h 1 h+1 …`` become halves ``0 1 … h h+1 …``."""
    head_size = rows.shape[0] // heads
    paired = rows.reshape(heads, head_size // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)
