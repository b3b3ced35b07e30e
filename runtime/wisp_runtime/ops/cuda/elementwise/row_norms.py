"""Norms of a GPU as layers call them; the result is in ``normed``, of bf16 in place."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.elementwise.norms import Norms
from wisp_runtime.ops.cuda.moe.combination import Combination
from wisp_runtime.ops.protocol.moe import ExpertResults


class RowNorms:
    """Norms, as :class:`.ops.CudaOps` has them."""

    _norms: Norms
    _combination: Combination

    def rmsnorm(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """See :meth:`.norms.Norms.rmsnorm`; of bf16 :meth:`.norms.Norms.norm_in_place`."""
        if x.dtype == BF16:
            return self._norms.norm_in_place(x, weight, eps=eps, is_zero_centred=is_zero_centred)
        return self._norms.rmsnorm(x, weight, eps=eps, out_name="normed", is_zero_centred=is_zero_centred)

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
        """See :meth:`.norms.Norms.add_rmsnorm`; what a mixture has left is added up on the way."""
        norms = self._combination if isinstance(x, ExpertResults) else self._norms
        return norms.add_rmsnorm(
            x, residual, weight, eps=eps, rows=rows, out_name="normed", is_zero_centred=is_zero_centred
        )
