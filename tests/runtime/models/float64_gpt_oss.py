"""A gpt-oss's forward pass in float64, straight from its safetensors file: no cache, no runtime code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Float64GptOss:
    """Weights of a folder in float64; experts as ``[E, in, out]``, from MXFP4 if they are."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        for name in [name for name in stored if name.endswith("_blocks")]:
            blocks, scales = stored.pop(name), stored.pop(name.replace("_blocks", "_scales"))
            codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
            values = E2M1[codes] * 2.0 ** (scales.astype(int) - 127)[..., None]
            rows = values.reshape(*scales.shape[:-1], -1)
            stored[name.removesuffix("_blocks")] = rows.swapaxes(1, 2)
        self.tensors = {
            name.removeprefix("model."): value.astype(np.float64) for name, value in stored.items()
        }

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Return ``[S, V]``, the logits after every token."""
        config, x = self.config, self.tensors["embed_tokens.weight"][tokens]
        for layer in range(config["num_hidden_layers"]):
            own = {
                name.removeprefix(f"layers.{layer}."): value
                for name, value in self.tensors.items()
                if name.startswith(f"layers.{layer}.")
            }
            x = x + self.attention(
                own, self.norm(x, own["input_layernorm.weight"]), is_windowed=not layer % 2
            )
            x = x + self.experts(own, self.norm(x, own["post_attention_layernorm.weight"]))
        return self.norm(x, self.tensors["norm.weight"]) @ self.tensors["lm_head.weight"].T

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def attention(self, own, x, *, is_windowed):
        config, count = self.config, len(x)
        heads, kv_heads, size = (
            config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        q, k, v = (
            (x @ own[f"self_attn.{part}_proj.weight"].T + own[f"self_attn.{part}_proj.bias"]).reshape(
                count, -1, size
            )
            for part in "qkv"
        )
        q, k = self.rotated(q), self.rotated(k)
        window = config["sliding_window"] if is_windowed else count
        out = np.zeros((count, heads, size))
        for row in range(count):
            seen = slice(max(0, row - window + 1), row + 1)
            for head in range(heads):
                kv = head // (heads // kv_heads)
                logits = np.append(k[seen, kv] @ q[row, head] / math.sqrt(size), own["self_attn.sinks"][head])
                shares = np.exp(logits - logits.max())
                out[row, head] = (shares / shares.sum())[:-1] @ v[seen, kv]
        return out.reshape(count, -1) @ own["self_attn.o_proj.weight"].T + own["self_attn.o_proj.bias"]

    def rotated(self, x):
        scaling, size = self.config["rope_scaling"], self.config["head_dim"]
        theta, old, factor = (
            self.config["rope_theta"],
            scaling["original_max_position_embeddings"],
            scaling["factor"],
        )
        low, high = (
            size * math.log(old / (2 * math.pi * scaling[key])) / (2 * math.log(theta))
            for key in ("beta_fast", "beta_slow")
        )
        pairs = np.arange(size // 2)
        share = np.clip((pairs - max(low, 0)) / (min(high, size - 1) - max(low, 0)), 0, 1)
        frequencies = theta ** (-2 * pairs / size) * (share / factor + 1 - share)
        angles = np.arange(len(x))[:, None, None] * frequencies
        turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1) * (0.1 * math.log(factor) + 1)

    def experts(self, own, x):
        router = x @ own["mlp.router.weight"].T + own["mlp.router.bias"]
        out = np.zeros_like(x)
        for row, logits in enumerate(router):
            chosen = np.argsort(-logits, kind="stable")[: self.config["num_experts_per_tok"]]
            shares = np.exp(logits[chosen] - logits[chosen].max())
            for expert, share in zip(chosen, shares / shares.sum(), strict=True):
                inner = x[row] @ own["mlp.experts.gate_up_proj"][expert]
                inner = inner + own["mlp.experts.gate_up_proj_bias"][expert]
                gate, up = np.minimum(inner[::2], 7), np.clip(inner[1::2], -7, 7)
                gated = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                down = (
                    gated @ own["mlp.experts.down_proj"][expert] + own["mlp.experts.down_proj_bias"][expert]
                )
                out[row] += share * down
        return out
