"""Forward passes of Gated DeltaNet hybrids in float64: Qwen3.5's, with experts too, and Qwen3-Next's."""

from __future__ import annotations

import numpy as np
from float64_mixture import Float64Mixture


class Float64Hybrid(Float64Mixture):
    """A model of Qwen3.5 or Qwen3-Next, token by token, from its checkpoint's own tensors and rows."""

    def states(self, tokens: list[int]) -> np.ndarray:
        x = self.tensors["embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"layers.{layer}."
            h = self.centred(x, f"{name}input_layernorm")
            is_linear = f"{name}linear_attn.conv1d.weight" in self.tensors
            x = x + (self.delta_net if is_linear else self.attention)(h, name)
            x = x + self.ffn(self.centred(x, f"{name}post_attention_layernorm"), name)
        return self.centred(x, "norm")

    def centred(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * (1 + self.tensors[f"{name}.weight"])

    def attention(self, h: np.ndarray, name: str) -> np.ndarray:
        name, size, tokens = f"{name}self_attn.", self.config["head_dim"], len(h)
        q, gate = np.split(self.linear(h, f"{name}q_proj").reshape(tokens, -1, 2 * size), 2, axis=2)
        k, v = (self.linear(h, f"{name}{part}_proj").reshape(tokens, -1, size) for part in "kv")
        q, k = self.rope(self.centred(q, f"{name}q_norm")), self.rope(self.centred(k, f"{name}k_norm"))
        k, v = (np.repeat(part, q.shape[1] // k.shape[1], axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v) / (1 + np.exp(-gate))
        return self.linear(mixed.reshape(tokens, -1), f"{name}o_proj")

    def delta_net(self, h: np.ndarray, name: str) -> np.ndarray:
        name, config, tokens = f"{name}linear_attn.", self.config, len(h)
        (keys, values), (dk, dv) = (
            [config[f"linear_{key}"] for key in pair]
            for pair in (("num_key_heads", "num_value_heads"), ("key_head_dim", "value_head_dim"))
        )
        q, k, v, z, b, a = self.projections(h, name, keys, values)
        mixed = self.convolved(np.concatenate([part.reshape(tokens, -1) for part in (q, k, v)], axis=1), name)
        q, k = (part.reshape(tokens, keys, dk) for part in np.split(mixed[:, : 2 * keys * dk], 2, axis=1))
        q, k = (part / np.sqrt((part**2).sum(axis=-1, keepdims=True) + 1e-6) for part in (q, k))
        q, k = (np.repeat(part, values // keys, axis=1) for part in (q / np.sqrt(dk), k))
        v, beta = mixed[:, 2 * keys * dk :].reshape(tokens, values, dv), 1 / (1 + np.exp(-b))
        rate = np.exp(self.tensors[f"{name}A_log"])
        decay = np.exp(-rate * np.logaddexp(0, a + self.tensors[f"{name}dt_bias"]))
        state, out = np.zeros((values, dk, dv)), np.empty((tokens, values, dv))
        for t in range(tokens):
            state *= decay[t, :, None, None]
            change = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t, :, :, None] * change[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        z = z.reshape(out.shape)
        gated = self.norm(out, f"{name}norm.weight") * z / (1 + np.exp(-z))
        return self.linear(gated.reshape(tokens, -1), f"{name}out_proj")

    def projections(self, h: np.ndarray, name: str, keys: int, values: int) -> list[np.ndarray]:
        """Return q, k, v, z, b and a of all heads, whichever rows the checkpoint has them in."""
        config, tokens = self.config, len(h)
        dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"] * values // keys
        if f"{name}in_proj_qkvz.weight" in self.tensors:
            grouped = self.linear(h, f"{name}in_proj_qkvz").reshape(tokens, keys, -1)
            ba = self.linear(h, f"{name}in_proj_ba").reshape(tokens, keys, 2, -1)
            parts = np.split(grouped, np.cumsum([dk, dk, dv]), axis=2)
            return [*parts, *(ba[:, :, half].reshape(tokens, values) for half in range(2))]
        qkv = self.linear(h, f"{name}in_proj_qkv")
        return [
            *np.split(qkv, np.cumsum([keys * dk, keys * dk]), axis=1),
            *(self.linear(h, f"{name}in_proj_{part}") for part in "zba"),
        ]

    def convolved(self, x: np.ndarray, name: str) -> np.ndarray:
        taps = self.tensors[f"{name}conv1d.weight"][:, 0].T
        padded = np.concatenate([np.zeros((len(taps) - 1, x.shape[1])), x])
        summed = sum(padded[tap : tap + len(x)] * taps[tap] for tap in range(len(taps)))
        return summed / (1 + np.exp(-summed))

    def ffn(self, h: np.ndarray, name: str) -> np.ndarray:
        out, shared = super().ffn(h, name), f"{name}mlp.shared_expert"
        if f"{shared}_gate.weight" in self.tensors:
            gate = 1 / (1 + np.exp(-self.linear(h, f"{shared}_gate")))
            out = out + gate * self.mlp(h, *(f"{shared}.{part}" for part in self.parts))
        return out
