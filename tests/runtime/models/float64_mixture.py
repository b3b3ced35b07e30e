"""Forward passes of mixtures of experts in float64: Qwen3-MoE's, Mixtral's and GLM-4.5's."""

from __future__ import annotations

import numpy as np
from float64_llama import Float64Llama


class Float64Mixture(Float64Llama):
    """A model whose layers have experts, or an MLP where there is no router.

    Attributes:
        chosen: experts that were chosen, (layer, expert).
    """

    block, parts = "mlp", ("gate_proj", "up_proj", "down_proj")

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.chosen: set[tuple[str, int]] = set()

    def ffn(self, h: np.ndarray, name: str) -> np.ndarray:
        block = f"{name}{self.block}."
        if f"{block}gate.weight" not in self.tensors:
            return super().ffn(h, name)
        out = np.zeros_like(h)
        for row, logits in enumerate(self.linear(h, f"{block}gate")):
            for expert, weight in self.route(logits, block):
                names = (f"{block}experts.{expert}.{part}" for part in self.parts)
                out[row] += weight * self.mlp(h[row], *names)
                self.chosen.add((name, expert))
        return out

    def route(self, logits: np.ndarray, _block: str) -> list[tuple[int, float]]:
        """Return the chosen experts and their weights."""
        shares = np.exp(logits) / np.exp(logits).sum()
        chosen = np.argsort(-shares)[: self.config["num_experts_per_tok"]]
        total = shares[chosen].sum() if self.config.get("norm_topk_prob", False) else 1
        return [(int(expert), shares[expert] / total) for expert in chosen]


class Float64Mixtral(Float64Mixture):
    """Mixtral: other names, weights that always add up to 1."""

    block, parts = "block_sparse_moe", ("w1", "w3", "w2")

    def route(self, logits: np.ndarray, block: str) -> list[tuple[int, float]]:
        chosen = super().route(logits, block)
        total = sum(weight for _, weight in chosen)
        return [(expert, weight / total) for expert, weight in chosen]


class Float64Glm(Float64Mixture):
    """GLM-4.5: DeepSeek's router, and a shared expert."""

    def ffn(self, h: np.ndarray, name: str) -> np.ndarray:
        out = super().ffn(h, name)
        shared = f"{name}mlp.shared_experts."
        if f"{shared}up_proj.weight" in self.tensors:
            out += self.mlp(h, *(shared + part for part in self.parts))
        return out

    def route(self, logits: np.ndarray, block: str) -> list[tuple[int, float]]:
        config, scores = self.config, 1 / (1 + np.exp(-logits))
        groups = (scores + self.tensors[f"{block}gate.e_score_correction_bias"]).reshape(
            config["n_group"], -1
        )
        best = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(axis=1))[: config["topk_group"]]
        masked = np.full_like(groups, -np.inf)
        masked[best] = groups[best]
        chosen = np.argsort(-masked.reshape(-1))[: config["num_experts_per_tok"]]
        weights = config["routed_scaling_factor"] * scores[chosen] / scores[chosen].sum()
        return list(zip(chosen.tolist(), weights, strict=True))
