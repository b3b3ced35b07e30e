"""Row by row operations of a device: embedding, norms, scaling, gathers."""

from __future__ import annotations

from typing import Protocol

from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.gemm import Matrix
from wisp_runtime.ops.protocol.moe import ExpertResults


class ElementwiseOps(Protocol):
    """Operations in which a row of the result depends on one row of each argument."""

    def embedding(self, tokens: Array, table: Matrix) -> Array:
        """Return row ``tokens[n]`` of ``table`` ``[V, D]`` for each n: the residual, ``[N, D]`` float32."""
        ...

    def rmsnorm(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """Scale each row of ``x`` ``[N, D]`` to root mean square 1, then by ``weight`` ``[D]``.

        Of zero-centred weights the factor is ``1 + weight``, computed in float32. The result may overwrite
        ``x``, unless it is a residual.
        """
        ...

    def add_rmsnorm(
        self,
        x: Array | ExpertResults,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        rows: Array | None = None,
        is_zero_centred: bool = False,
    ) -> Array:
        """Add ``x`` into ``residual`` in place (both ``[N, D]``) and return the norm of the sum.

        ``x`` may be what a mixture has left to add up. With ``rows`` ``[R]``, none twice, ``x`` is
        ``[R, D]``: row i is added into row ``rows[i]``, the other rows stay as they are, and the norm is that
        of those rows, ``[R, D]``.
        """
        ...

    def scale(self, x: Array, factor: float) -> Array:
        """Multiply ``x``, a residual, logits or activations ``[N, C]``, by ``factor`` in place; return it."""
        ...

    def add_scaled(self, x: Array, residual: Array, factor: float, rows: Array | None = None) -> None:
        """Add ``factor * x`` into ``residual`` in place; shapes and ``rows`` as of :meth:`add_rmsnorm`."""
        ...

    def gather_rows(self, x: Array, rows: Array) -> Array:
        """Return row ``rows[i]`` of ``x`` ``[N, in]`` for each i: ``[R, in]``, contiguous."""
        ...
