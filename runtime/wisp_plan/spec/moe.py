"""Mixture of experts: a router sends each token to a few feed-forward blocks of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_plan.spec.ffn import Activation, DenseSpec, has_gate

Scores = Literal["softmax", "sigmoid"]
"""Functions of a router's logits; a device refuses one that it does not know."""


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """Choice of a token's experts, and their weights in the sum. Of equal scores the lower index wins.

    Attributes:
        experts, chosen: E, K.
        scores: scores of the logits; weights are the scores of the chosen experts.
        normalizes: whether weights are divided by their sum; of softmax it is then that of the K chosen
            logits.
        has_bias: bias of the logits.
        has_correction_bias: bias of an expert's score that decides the choice alone.
        groups, chosen_groups: groups of as many experts each, and those of them that are chosen from: the
            groups whose two best experts' scores, corrected, have the largest sum.
        scale: factor of the weights.
    """

    experts: int
    chosen: int
    scores: Scores = "softmax"
    normalizes: bool = True
    has_bias: bool = False
    has_correction_bias: bool = False
    groups: int = 1
    chosen_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Mixture of experts: the weighted sum of the chosen experts, and of a shared one.

    Attributes:
        router: choice of experts.
        inner: F of one expert.
        activation: function between an expert's projections.
        has_bias: biases of the experts' projections, inside of what is weighted.
        shared: block that every token passes; None: there is none.
        has_shared_gate: whether its result is multiplied by ``sigmoid`` of a logit a token.
        latent: width of the experts' inputs and results, which projections of all tokens reach from D and
            lead back from; None: D. Router and shared expert are as wide as the model.
    """

    router: RouterSpec
    inner: int
    activation: Activation = "silu"
    has_bias: bool = False
    shared: DenseSpec | None = None
    has_shared_gate: bool = False
    latent: int | None = None

    @property
    def is_gated(self) -> bool:
        """Whether an expert has a gate beside up."""
        return has_gate(self.activation)
