"""Reference implementation of every op in NumPy: kernels are compared with it, and the CPU runs it.

Plain functions over float32 arrays without checks; :mod:`wisp_runtime.ops.cpu.ops` checks.
"""

from wisp_runtime.ops.reference.activation import activate
from wisp_runtime.ops.reference.attention import paged_attention, write_kv
from wisp_runtime.ops.reference.decode import Decode, decodes
from wisp_runtime.ops.reference.dense import (
    add_rmsnorm,
    add_scaled,
    embedding,
    gate_heads,
    gather_rows,
    gelu_mul,
    linear,
    relu2,
    rmsnorm,
    rope,
    silu_mul,
    store_rows,
    widen,
)
from wisp_runtime.ops.reference.mamba import mamba
from wisp_runtime.ops.reference.moe import choose_experts, mixture, scale_rows
from wisp_runtime.ops.reference.philox import philox4x32, token_words
from wisp_runtime.ops.reference.random import random_values
from wisp_runtime.ops.reference.recurrent import delta_net
from wisp_runtime.ops.reference.sampling import sample

__all__ = [
    "Decode",
    "activate",
    "add_rmsnorm",
    "add_scaled",
    "choose_experts",
    "decodes",
    "delta_net",
    "embedding",
    "gate_heads",
    "gather_rows",
    "gelu_mul",
    "linear",
    "mamba",
    "mixture",
    "paged_attention",
    "philox4x32",
    "random_values",
    "relu2",
    "rmsnorm",
    "rope",
    "sample",
    "scale_rows",
    "silu_mul",
    "store_rows",
    "token_words",
    "widen",
    "write_kv",
]
