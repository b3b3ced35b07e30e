"""Vectors that prompts are reduced to, taken from the forward pass of a step.

A prompt that is pooled is computed as every prompt is; its vector comes from the step that holds its last
token. Means are sums over all its chunks, kept with its sequence, so its first chunk begins at position 0:
it takes no part in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.scheduling.plan import Chunk, Plan, SampledToken
from wisp_runtime.engine.transport.messages import MAX_LOGIT_TOKENS, PoolingKind
from wisp_runtime.models.model import Output
from wisp_runtime.ops.protocol.stream import Stream

Vectors = list[Array | None]
"""One entry for each chunk of a plan with logits; None where the prompt is not pooled. Empty: none is."""
_FLOAT32_BYTES = 4


def pooling_kinds(stream: Stream | None) -> frozenset[PoolingKind]:
    """Return the kinds of pooling that are computed: steps of a stream keep the rows with logits alone."""
    return frozenset[PoolingKind](("last", "logits") if stream is not None else ("last", "logits", "mean"))


def pool_on_host(plan: Plan, output: Output) -> Vectors:
    """Return the vectors of a step whose results are on the host, and add its tokens to sums of means."""
    if not has_pooling(plan):
        return []
    _add_to_sums(plan, output)
    return [_vector(chunk, row, output) for row, chunk in _reporting(plan)]


def has_pooling(plan: Plan) -> bool:
    """Return whether any prompt of ``plan`` is pooled."""
    return any(chunk.sequence.request.pooling is not None for chunk in plan)


def _reporting(plan: Plan) -> Iterator[tuple[int, Chunk]]:
    """Yield each chunk with logits, and the row of its last token among those with logits."""
    rows = 0
    for chunk in plan:
        rows += chunk.logits
        if chunk.logits:
            yield rows - 1, chunk


def _vector(chunk: Chunk, row: int, output: Output) -> Array | None:
    pooling = chunk.sequence.request.pooling
    if pooling is None:
        return None
    if pooling.kind == "mean":
        assert chunk.sequence.state_sum is not None
        return chunk.sequence.state_sum / chunk.sequence.prompt_tokens
    if pooling.kind == "logits":
        return output.logits[row, list(pooling.token_ids)]
    assert output.hidden is not None, "a prompt's hidden state stays inside of a kernel"
    return output.hidden[row]


def _add_to_sums(plan: Plan, output: Output) -> None:
    first = 0
    for chunk in plan:
        pooling, sequence = chunk.sequence.request.pooling, chunk.sequence
        if pooling is not None and pooling.kind == "mean":
            assert output.states is not None, "the states of all tokens were not computed"
            total = output.states[first : first + chunk.tokens].sum(axis=0, dtype=np.float64)
            sequence.state_sum = total if chunk.start == 0 else sequence.state_sum + total
        first += chunk.tokens


class PooledResults:
    """Copies of a device's vectors to the host, for steps that run later than their launch.

    Page-locked memory comes twice: at most two steps are uncommitted at a time.

    Args:
        stream: stream of the device.
        rows: sequences of a step.
        hidden: numbers of a hidden state, which are bf16 or float32.
    """

    def __init__(self, stream: Stream, rows: int, hidden: int) -> None:
        self._stream = stream
        self._row_bytes = max(hidden, MAX_LOGIT_TOKENS) * _FLOAT32_BYTES
        self._memory = [stream.host_memory(rows * self._row_bytes) for _ in range(2)]

    def fetch(self, plan: Plan, output: Output) -> Vectors:
        """Enqueue the copies of the vectors of ``plan``; return the memory where they will be."""
        if not has_pooling(plan):
            return []
        self._memory.reverse()
        vectors, memory = Vectors(), self._memory[0].reshape(-1, self._row_bytes)
        for row, chunk in _reporting(plan):
            pooling = chunk.sequence.request.pooling
            if pooling is None:
                vectors.append(None)
            elif pooling.kind == "logits":
                vectors.append(
                    self._copied(memory[len(vectors)], self._logits(output, row, pooling.token_ids))
                )
            else:
                assert pooling.kind == "last", "admission refuses what a device does not compute"
                assert output.hidden is not None, "a prompt's hidden state stays inside of a kernel"
                vectors.append(self._copied(memory[len(vectors)], [output.hidden[row]]))
        return vectors

    def _logits(self, output: Output, row: int, tokens: Items[int]) -> list[Array]:
        return [output.logits[row, token : token + 1] for token in tokens]

    def _copied(self, memory: Array, arrays: list[Array]) -> Array:
        """Enqueue copies of ``arrays``, contiguous and of one type, one behind the other."""
        start, kind = 0, arrays[0].dtype
        for array in arrays:
            self._stream.download(memory[start : start + array.nbytes].view(kind), array)
            start += array.nbytes
        return memory[:start].view(kind)


def with_vectors(tokens: list[SampledToken], vectors: Vectors) -> list[SampledToken]:
    """Return ``tokens`` with the vectors of prompts that are pooled, on the host by now."""
    if not vectors:
        return tokens
    return [
        token if vector is None or token.error else _pooled(token, vector)
        for token, vector in zip(tokens, vectors, strict=True)
    ]


def _pooled(token: SampledToken, vector: Array) -> SampledToken:
    numbers = vector.astype(np.float32)
    if not np.isfinite(numbers).all():
        return token._replace(error=_UNSOUND)
    return token._replace(pooled=numbers.tobytes())


_UNSOUND = (
    "the model's hidden state was not finite (overflow or damaged weights); this request was ended, others "
    "go on. Check the checkpoint's dtype and files"
)
