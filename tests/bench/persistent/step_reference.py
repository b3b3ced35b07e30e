"""A step of one layer in float32, from the weights that quantized ones stand for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cupy as cp
from bf16_matrix import from_bf16

if TYPE_CHECKING:
    from step_subject import StepSubject

_RMS_ERROR = 2e-3  # relative; attended rows, rounded to f16, have norms up to 1e-3 from float32's


def reference(subject: StepSubject, size: int) -> dict[str, Any]:
    """Return each stage of the first layer, and the logits after it."""
    attention, made = subject.attention, subject.made
    queries, kv, dim = attention.heads, attention.kv_heads, attention.head_size
    norms = [from_bf16(norm) for norm in (*subject.norm_weights[:2], subject.norm_weights[-1])]
    x = subject.embeddings.dense(subject.tokens[:size])
    qkv = times(_normed(subject, x, norms[0]), made["qkv"])
    channel = cp.arange(dim)
    half, i = channel // (dim // 2), channel % (dim // 2)
    heads = qkv.reshape(size, -1, dim)[:, :, i // 32 * 64 + half * 32 + i % 32]
    cosine, sine = subject.cosines[subject.context - 1], subject.sines[subject.context - 1]
    low, high = heads[:, : queries + kv, : dim // 2], heads[:, : queries + kv, dim // 2 :]
    turned = cp.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)
    keys, values = (
        from_bf16(cache[0][subject.tables[:size]].transpose(0, 2, 1, 3, 4)).reshape(size, kv, -1, dim)
        for cache in (subject.keys, subject.values)
    )
    keys[:, :, subject.context - 1], values[:, :, subject.context - 1] = (
        turned[:, queries:],
        heads[:, queries + kv :],
    )
    grouped = turned[:, :queries].reshape(size, kv, queries // kv, dim)
    scores = cp.einsum("bkgd,bktd->bkgt", grouped, keys) / math.sqrt(dim)
    weights = cp.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = cp.einsum("bkgt,bktd->bkgd", weights, values).reshape(size, -1)
    after = x + times(attended, made["output"])
    both = times(_normed(subject, after, norms[1]), made["gate_up"]).reshape(size, -1, 2, 8)
    gate, up = both[:, :, 0].reshape(size, -1), both[:, :, 1].reshape(size, -1)
    gated = gate / (1 + cp.exp(-gate)) * up
    final = after + times(gated, made["down"])
    logits = times(_normed(subject, final, norms[2]), subject.head)[:, : subject.spec.vocab]
    return {
        "qkv": qkv, "attended": attended, "gated": gated,
        "added": final - x, "logits": logits, "embedding": x, "final": final, "units": _units(subject, after),
    }  # fmt: skip


def _normed(subject: StepSubject, x: Any, weight: Any) -> Any:
    return x / cp.sqrt((x * x).mean(-1, keepdims=True) + subject.norms.eps) * weight


def _units(subject: StepSubject, before: Any) -> tuple[Any, Any]:
    """Return the power of two that the kernel stores a row of the residual times, for f16 activations.

    Where a row's rms is next to a power of two, the kernel's, which is rounded elsewhere, may be on either
    side: the two are the smallest and the largest.
    """
    inverse_rms = 1 / cp.sqrt((before * before).mean(-1, keepdims=True) + subject.norms.eps)
    edges = (inverse_rms * (1 - _RMS_ERROR), inverse_rms * (1 + _RMS_ERROR))
    low, high = (cp.exp2(cp.floor(cp.log2(edge)) - 9) for edge in edges)
    return low, high


def times(x: Any, matrix: Any) -> Any:
    return x @ matrix.dense().T
