"""Choose the next token of each row of logits, in NumPy.

In this order: penalties (repetition, then presence and frequency), logit bias and grammar bitmask on the
logits; temperature; top-k; top-p among
those; min-p; then one token by Gumbel-max sampling, as an exponential race. A row's random numbers depend on
its seed and step alone.
"""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.ops.reference.philox import token_words

_LIKELIEST = 1024  # tokens that top-p tries before it sorts the whole vocabulary


def sample(logits: Array, sampling: SamplingBatch) -> Sampled:
    """Choose one token per row; ``logits`` is left as it is.

    Temperature 0 takes the best token, the lowest id among equals. A row that holds NaN or +inf gives
    the id of such a logit. Log-probabilities are those of the model: of the logits as they came.

    Args:
        logits: ``[R, V]`` float32.
        sampling: parameters of each of the R rows.

    Source of the race: Efraimidis & Spirakis 2006; with probability p_i the smallest of ``E_i / p_i`` is i's,
    for independent exponential variables E, which are ``-log(1 - u)`` of Philox words.
    """
    tokens = np.empty(len(logits), np.int32)
    for row, raw in enumerate(logits):
        adjusted = _adjust(raw, sampling, row)
        temperature = float(sampling.temperature[row])
        best = int(adjusted.argmax())
        is_greedy = temperature == 0 or not np.isfinite(adjusted[best])
        tokens[row] = best if is_greedy else _sample_row(adjusted, sampling, row)
    if sampling.logprobs < 0:
        return Sampled(tokens)
    return Sampled(tokens, *_log_probabilities(logits, tokens, sampling.logprobs))


def _adjust(raw: Array, sampling: SamplingBatch, row: int) -> Array:
    """Apply penalties, bias and bitmask; return ``raw`` itself where there is nothing to apply.

    A repetition penalty divides positive logits of tokens seen, and multiplies negative ones.

    Source of the repetition penalty: Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1, for logits of
    either sign as in transformers and vLLM.
    """
    biased = slice(*sampling.bias_starts[row : row + 2])
    counted = slice(*sampling.count_starts[row : row + 2])
    presence, frequency = sampling.presence_penalty[row], sampling.frequency_penalty[row]
    is_penalised = counted.start < counted.stop and (presence != 0 or frequency != 0)
    repetition = np.float32(sampling.repetition_penalty[row])
    if sampling.bitmask is None and biased.start == biased.stop and not is_penalised and repetition == 1:
        return raw
    logits = raw.copy()
    if repetition != 1 and sampling.seen is not None:  # ops/protocol/checks.py requires it
        seen = _bits(sampling.seen[row], len(logits))
        logits[seen] = np.where(raw[seen] > 0, raw[seen] / repetition, raw[seen] * repetition)
    if is_penalised:
        counts = sampling.counts[counted]
        logits[sampling.count_ids[counted]] -= presence * (counts > 0) + frequency * counts
    np.add.at(logits, sampling.bias_ids[biased], sampling.biases[biased])
    if sampling.bitmask is not None:
        logits[~_bits(sampling.bitmask[row], len(logits))] = -np.inf
    return logits


def _bits(words: Array, count: int) -> Array:
    """Return the first ``count`` bits of ``words`` uint32 as booleans."""
    return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").astype(bool)


def _sample_row(logits: Array, sampling: SamplingBatch, row: int) -> int:
    """Sample a token of one row whose best logit is finite."""
    kept, scaled = _keep(logits, sampling, row)
    words = token_words(kept, int(sampling.seeds[row]), int(sampling.steps[row]))
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    exponential = -np.log1p(-uniform)
    return int(kept[np.argmax(scaled - np.log(exponential))])


def _keep(logits: Array, sampling: SamplingBatch, row: int) -> tuple[Array, Array]:
    """Return the ids that may be sampled, ascending, and their logits over the temperature."""
    kept = _top_k(logits, int(sampling.top_k[row]))
    # Below the smallest normal number a temperature would turn finite logits into infinite ones.
    temperature = max(float(sampling.temperature[row]), 1e-30)
    scaled = (logits[kept].astype(np.float64) - float(logits.max())) / temperature
    kept, scaled = kept[scaled > -np.inf], scaled[scaled > -np.inf]
    if sampling.top_p[row] < 1:
        chosen = _top_p(scaled, float(sampling.top_p[row]))
        kept, scaled = kept[chosen], scaled[chosen]
    if sampling.min_p[row] > 0:
        chosen = scaled >= np.log(float(sampling.min_p[row]))
        kept, scaled = kept[chosen], scaled[chosen]
    return kept, scaled


def _top_k(logits: Array, k: int) -> Array:
    """Return the ids of the k best, ascending; among equals the lower id counts as better."""
    if k <= 0 or k >= len(logits):
        return np.arange(len(logits))
    threshold = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > threshold)
    ties = np.flatnonzero(logits == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _top_p(scaled: Array, p: float) -> Array:
    """Return, ascending, the fewest best indices whose probabilities reach ``p``; at least one."""
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    if len(scaled) > _LIKELIEST:
        threshold = np.partition(probabilities, -_LIKELIEST)[-_LIKELIEST]
        likely = np.flatnonzero(probabilities >= threshold)
        if probabilities[likely].sum() > p:
            return likely[_fewest(probabilities[likely], p)]
    return _fewest(probabilities, p)


def _fewest(probabilities: Array, p: float) -> Array:
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    return np.sort(order[: max(1, int(np.searchsorted(before, p)))])


def _log_probabilities(logits: Array, tokens: Array, top: int) -> tuple[Array, Array, Array]:
    """Return ``[R]`` of the chosen, and ids and values ``[R, top]`` of the best, all by the raw logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, tokens[:, None].astype(np.int64), axis=1)[:, 0]
    top = min(top, logits.shape[1])
    ids = np.stack([_best(row, top) for row in logits]) if len(logits) else np.empty((0, top), np.int64)
    return chosen, ids.astype(np.int32), np.take_along_axis(log_probabilities, ids, axis=1)


def _best(row: Array, count: int) -> Array:
    """Return the ids of the ``count`` best logits, best first, the lower id first among equals."""
    row = np.where(np.isnan(row), -np.inf, row)
    ids = _top_k(row, count) if count else np.empty(0, np.int64)
    return ids[np.argsort(-row[ids], kind="stable")][:count]
