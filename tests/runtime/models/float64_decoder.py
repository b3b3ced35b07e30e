"""Decoder in float64 NumPy, token by token where it recurs: what the CPU's layers are compared with.

Written from the papers' formulas, not from the runtime's code. Weights are by the model's names of them.
"""

from __future__ import annotations

import numpy as np

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.layer import ParallelSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.moe import MoeSpec


def decode(spec, weights, tokens):
    """Return logits ``[S, V]`` of all tokens, and the stream before each layer and behind the last."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x, streams = weights["embeddings.weight"][tokens] * spec.embedding_scale, []
    for index, layer in enumerate(spec.layers):
        streams.append(x)
        own = {
            name.removeprefix(f"layers.{index}."): value
            for name, value in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        if layer.mixer is not None:
            x = x + mixed(layer.mixer, own, norm(x, own["input_norm.weight"], layer.norms.eps))
        if layer.ffn is not None:
            block = mixture if isinstance(layer.ffn, MoeSpec) else mlp
            x = x + block(layer.ffn, own, norm(x, own["mlp_norm.weight"], layer.norms.eps))
    head = weights["embeddings.weight" if spec.ties_embeddings else "head.weight"]
    normed = norm(x, weights["norm.weight"], spec.final_norm.eps)
    return normed @ head.T * spec.logits_scale, [*streams, x]


def mixed(mixer, own, x):
    if isinstance(mixer, ParallelSpec):
        parts = zip(mixer.mixers, mixer.scales, strict=True)
        return sum(scale * mixed(part, own, x) for part, scale in parts)
    return {AttentionSpec: attention, MambaSpec: mamba}[type(mixer)](mixer, own, x)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def linear(own, name, x):
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0.0)


def mlp(spec, own, x):
    if not spec.is_gated:
        return spec.scale * linear(own, "down", np.maximum(linear(own, "up", x), 0) ** 2)
    gate, up = np.split(linear(own, "gate_up", x), 2, axis=1)
    return spec.scale * linear(own, "down", silu(spec.gate_scale * gate) * up)


def mixture(spec, own, x):
    out = mlp(spec.shared, {name.removeprefix("shared."): value for name, value in own.items()}, x)
    into, back = (own.get(f"{side}_latent.weight", np.eye(x.shape[1])) for side in ("into", "from"))
    for row, logits in enumerate(x @ own["router.weight"].T):
        for expert, weight in routed(spec.router, logits, own.get("router.correction", 0.0)):
            inner = own["experts.gate_up.weight"][expert] @ (into @ x[row])
            if spec.is_gated:
                gate, up = np.split(inner, 2)
                inner = silu(gate) * up
            else:
                inner = np.maximum(inner, 0) ** 2
            out[row] += weight * (back @ (own["experts.down.weight"][expert] @ inner))
    return out


def routed(router, logits, correction):
    if router.scores == "softmax":
        chosen = np.argsort(-logits)[: router.chosen]
        weights = np.exp(logits[chosen] - logits.max())
    else:
        assert router.scores == "sigmoid"
        scores = 1 / (1 + np.exp(-logits))
        groups = (scores + correction).reshape(router.groups, -1)
        best = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(axis=1))[: router.chosen_groups]
        masked = np.full_like(groups, -np.inf)
        masked[best] = groups[best]
        chosen = np.argsort(-masked.reshape(-1))[: router.chosen]
        weights = scores[chosen]
    return zip(chosen, router.scale * weights / weights.sum(), strict=True)


def attention(spec, own, x):
    count, heads, kv_heads, size = len(x), spec.heads, spec.kv_heads, spec.head_size
    q, k, v = np.split(linear(own, "qkv", x), [heads * size, (heads + kv_heads) * size], axis=1)
    q, k, v = (
        q.reshape(count, heads, size),
        k.reshape(count, kv_heads, size),
        v.reshape(count, kv_heads, size),
    )
    if spec.rope is not None:
        half = spec.rotary_size // 2
        angles = np.arange(count)[:, None, None] * spec.rope.theta ** -(np.arange(half) / half)
        q, k = rotated(q, angles), rotated(k, angles)
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("nhd,mhd->hnm", q, k) * spec.score_scale
    distance = np.arange(count)[:, None] - np.arange(count)
    seen = (distance >= 0) & (distance < (spec.window or count + 1))
    scores = np.exp(np.where(seen, scores - scores.max(axis=-1, keepdims=True), -np.inf))
    values = np.einsum("hnm,mhd->nhd", scores / scores.sum(axis=-1, keepdims=True), v)
    return linear(own, "output", values.reshape(count, -1))


def rotated(x, angles):
    half = angles.shape[-1]
    pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], axis=-1)


def mamba(spec, own, x):
    count, inner, states = len(x), spec.heads * spec.head_size, spec.groups * spec.state_size
    factors = np.repeat(spec.scales, [inner, inner, states, states, spec.heads])
    z, xbc, step = np.split(linear(own, "mamba.input", x) * factors, [inner, 2 * inner + 2 * states], axis=1)
    padded = np.concatenate([np.zeros((spec.kernel - 1, xbc.shape[1])), xbc])
    taps = own["mamba.conv.weight"]
    summed = sum(padded[tap : tap + count] * taps[:, tap] for tap in range(spec.kernel))
    channels, b, c = np.split(silu(summed + own.get("mamba.conv.bias", 0.0)), [inner, inner + states], axis=1)
    channels = channels.reshape(count, spec.heads, spec.head_size)
    b, c = (
        np.repeat(part.reshape(count, spec.groups, -1), spec.heads // spec.groups, axis=1) for part in (b, c)
    )
    step = np.log1p(np.exp(step + own["mamba.step_bias"]))
    decay = np.exp(-step * np.exp(own["mamba.decay"]))
    state, out = np.zeros((spec.heads, spec.head_size, spec.state_size)), np.empty_like(channels)
    for n in range(count):
        added = step[n, :, None, None] * channels[n, :, :, None] * b[n, :, None]
        state = decay[n, :, None, None] * state + added
        out[n] = np.einsum("hps,hs->hp", state, c[n])
    out = (out + own["mamba.skip"][:, None] * channels).reshape(count, inner)
    return linear(own, "mamba.output", gated(spec, own, out, z))


def gated(spec, own, y, z):
    if spec.gating == "gate":
        return y * silu(z)
    by_group = (len(y), spec.groups, -1)
    weight = own["mamba.norm.weight"].reshape(by_group[1:])
    if spec.gating == "gate_then_norm":
        return norm((y * silu(z)).reshape(by_group), weight, spec.norm_eps).reshape(y.shape)
    return norm(y.reshape(by_group), weight, spec.norm_eps).reshape(y.shape) * silu(z)
