"""Names of a model's tensors: ggml's, and those of its family's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import ConfigInvalid
from wisp_plan.gguf.config import EMBEDDINGS, HEAD, REMEDY, ROPE_FACTORS, Family
from wisp_plan.json_object import shorten

_OF_MODEL = {EMBEDDINGS: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_OF_MODEL[HEAD] = "lm_head.weight"
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
_FOLLOWING_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LAYER_NAME = re.compile(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)")


def renamed(tensors: Iterable[TensorInfo], family: Family, head_size: int) -> Iterator[TensorInfo]:
    """Yield the tensors of a model as its family's checkpoints name them.

    Args:
        tensors: tensors under ggml's names.
        family: family of the model.
        head_size: Dh.

    Raises:
        ConfigInvalid: a tensor is none of the family's: computing without it would be another model.
    """
    known = dict(_OF_LAYER)
    known |= _QK_NORMS if family.has_qk_norm else {}
    known |= _EXPERTS if family.has_experts else {}
    known |= _FOLLOWING_NORMS if family.has_following_norms else {}
    for info in tensors:
        if info.name == ROPE_FACTORS:  # a part of the config
            continue
        match = _LAYER_NAME.fullmatch(info.name)
        if match is None:
            yield replace(info, name=_of_model(info))
            continue
        if match[2] not in known:
            raise _unknown(info)
        name = f"model.layers.{match[1]}.{known[match[2]]}.{match[3]}"
        is_paired = family.has_paired_rows and match[2] in ("attn_q", "attn_k")
        yield replace(info, name=name, paired_rows=head_size if is_paired else 0)


def _of_model(info: TensorInfo) -> str:
    if info.name not in _OF_MODEL:
        raise _unknown(info)
    return _OF_MODEL[info.name]


def _unknown(info: TensorInfo) -> ConfigInvalid:
    return ConfigInvalid(
        f"{info.file}: the tensor {shorten(info.name)} is not one of a model of this architecture that is "
        f"read. {REMEDY}",
        key=info.name,
    )
