"""A llama's or Qwen3's forward pass in float64, straight from its safetensors file: no cache, no batch.

Independent of the runtime: it shares neither ops nor weights' layout with it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


class Float64Llama:
    """Weights of a folder in float64."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        self.tensors = {name.removeprefix("model."): value.astype(float) for name, value in tensors.items()}

    def states(self, tokens: list[int]) -> np.ndarray:
        """Return ``[S, D]``, the states after the final norm."""
        config, weight = self.config, self.tensors
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        x = weight["embed_tokens.weight"][tokens]
        for layer in range(config["num_hidden_layers"]):
            name = f"layers.{layer}."
            h = self.norm(x, name + "input_layernorm.weight")
            q, k, v = (
                self.linear(h, f"{name}self_attn.{part}_proj").reshape(len(x), -1, size) for part in "qkv"
            )
            if name + "self_attn.q_norm.weight" in weight:
                q = self.norm(q, name + "self_attn.q_norm.weight")
                k = self.norm(k, name + "self_attn.k_norm.weight")
            q, k = self.rope(q), self.rope(k)
            k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
            scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1)
            x = x + mixed @ weight[name + "self_attn.o_proj.weight"].T
            h = self.norm(x, name + "post_attention_layernorm.weight")
            x = x + self.ffn(h, name)
        return self.norm(x, "norm.weight")

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Return ``[V]``, the logits after the last token."""
        head = self.tensors.get("lm_head.weight", self.tensors["embed_tokens.weight"])
        return head @ self.states(tokens)[-1]

    def ffn(self, h: np.ndarray, name: str) -> np.ndarray:
        return self.mlp(h, *(f"{name}mlp.{part}_proj" for part in ("gate", "up", "down")))

    def mlp(self, h: np.ndarray, *names: str) -> np.ndarray:
        gate, up = (self.linear(h, name) for name in names[:2])
        return self.linear(gate / (1 + np.exp(-gate)) * up, names[2])

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.tensors[name]

    def rope(self, x: np.ndarray) -> np.ndarray:
        rotated = int(x.shape[-1] * self.config.get("partial_rotary_factor", 1))
        half, theta = rotated // 2, self.config.get("rope_theta", 10000.0)
        angles = np.arange(len(x))[:, None] * theta ** -(np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second, rest = x[..., :half], x[..., half:rotated], x[..., rotated:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
