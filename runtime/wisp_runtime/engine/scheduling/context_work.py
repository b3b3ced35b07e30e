"""Work of a prompt's token for each token of its context: steps of long contexts get fewer tokens."""

from __future__ import annotations

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.sizes import active_parameters

_ATTENTION_SLOWDOWN = 1.3


def context_work(spec: ModelSpec) -> float:
    """Return the work of a prompt's token for each token of its context, in tokens without context.

    By operations: a pair of tokens costs 4 for each channel of the queries, a token without context 2 for
    each weight that it is multiplied with. An H200 takes 1.3 times as long for an operation of attention as
    for one of a GEMM (Llama-3-8B).
    """
    mixers = (mixer for layer in spec.layers for mixer in layer.mixers)
    attentions = [mixer for mixer in mixers if isinstance(mixer, AttentionSpec)]
    pair = sum(4 * attention.query_size for attention in attentions if not attention.window)
    embeddings = spec.vocab * spec.hidden * (1 if spec.ties_embeddings else 2)
    return _ATTENTION_SLOWDOWN * pair / (2 * max(1, active_parameters(spec) - embeddings))
