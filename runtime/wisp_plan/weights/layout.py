"""How weights lie in memory: matrices stacked as a step multiplies by them, and on a GPU padded to blocks.

What the runtime allocates and what the ledger counts are the same numbers, because both come from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.tensors import ExpectedTensor, expected_tensors

BLOCK = 64
"""Rows, and columns, of a block of a packed matrix (``kernels/README.md``)."""

ALIGNMENT_ELEMENTS = 64
"""Every weight starts at a multiple of so many elements: 128 bytes of bf16, 256 of float32."""

_STACKS = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}


def stacked_tensors(spec: ModelSpec) -> Iterator[ExpectedTensor]:
    """List the weights of ``spec`` as they are held: Q, K and V are one, gate and up are one.

    They are named after their first tensor, with the stack's name in its place.
    """
    stacks: dict[str, list[ExpectedTensor]] = {}
    for tensor in expected_tensors(spec):
        parts = (_STACKS.get(part, part) for part in tensor.name.split("."))
        stacks.setdefault(".".join(parts), []).append(tensor)
    for name, tensors in stacks.items():
        rows = sum(tensor.shape[0] for tensor in tensors)
        yield replace(tensors[0], name=name, shape=(rows, *tensors[0].shape[1:]))


def padded(count: int, multiple: int = BLOCK) -> int:
    """Round ``count`` up to a ``multiple``."""
    return -(-count // multiple) * multiple


def packed_shape(outputs: int, inputs: int) -> tuple[int, int]:
    """Return the shape of an ``[outputs, inputs]`` matrix on a GPU, its padding included."""
    return padded(outputs), padded(inputs)


def packed_elements(outputs: int, inputs: int) -> int:
    """Count the numbers of an ``[outputs, inputs]`` matrix on a GPU, its padding included."""
    return math.prod(packed_shape(outputs, inputs))


def held_elements(shape: tuple[int, ...]) -> int:
    """Count the numbers that a weight takes of the GPU's arena, what aligns the next one included."""
    elements = packed_elements(*shape) if len(shape) == 2 else math.prod(shape)
    return padded(elements, ALIGNMENT_ELEMENTS)
