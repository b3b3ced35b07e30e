"""Sampling of a device: next tokens from logits, at once or on a stream."""

from __future__ import annotations

from typing import Any, Protocol

from wisp_runtime.batch import Array, Sampled, SamplingBatch


class SamplingOps(Protocol):
    """Sampling that waits for its result."""

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """Choose the next token of each row of ``logits`` ``[R, V]``; the result is on the host."""
        ...


class SampledArrays(Protocol):
    """Sampled tokens on the device: the fields of :class:`wisp_runtime.batch.Sampled`, and ``is_sound``.

    ``is_sound`` is ``[R]`` uint8, 1 where the row's logits were numbers.
    """

    @property
    def tokens(self) -> Array: ...

    @property
    def is_sound(self) -> Array: ...

    @property
    def logprobs(self) -> Array | None: ...

    @property
    def top_ids(self) -> Array | None: ...

    @property
    def top_logprobs(self) -> Array | None: ...


class Sampler(Protocol):
    """Samples on the device's stream; the next step's embedding reads the tokens where they lie.

    Attributes:
        parameter_bytes: size of a step's parameters.
    """

    parameter_bytes: int

    def host_view(self, memory: Array) -> Any:
        """View ``[parameter_bytes]`` uint8 of host memory as parameters."""
        ...

    def fill(self, view: Any, sampling: SamplingBatch) -> None:
        """Write ``sampling`` into a view that :meth:`host_view` returned; its rows are those that count."""
        ...

    def launch(
        self, logits: Array, rows: int, parameters: Array, *, logprobs: int, greedy: bool
    ) -> SampledArrays:
        """Choose a token for each of ``rows`` rows that counts.

        Args:
            logits: ``[rows, V]`` float32.
            rows: R, padding included.
            parameters: ``[parameter_bytes]`` uint8 of the device, as :meth:`fill` wrote them.
            logprobs: alternatives to report; -1 computes no log-probabilities.
            greedy: whether every row takes its best token.
        """
        ...
