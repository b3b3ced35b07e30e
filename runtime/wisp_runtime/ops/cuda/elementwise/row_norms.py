"""Norms of a GPU as layers call them; the result is in ``normed``, of bf16 in place."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.elementwise.norms import Norms


class RowNorms:
    """Norms, as :class:`.ops.CudaOps` has them."""

    _norms: Norms

    def rmsnorm(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """See :meth:`.norms.Norms.rmsnorm`; of bf16 :meth:`.norms.Norms.norm_in_place`."""
        if x.dtype == BF16:
            return self._norms.norm_in_place(x, weight, eps=eps, is_zero_centred=is_zero_centred)
        return self._norms.rmsnorm(x, weight, eps=eps, out_name="normed", is_zero_centred=is_zero_centred)

    def add_rmsnorm(
        self,
        x: Array,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        rows: Array | None = None,
        is_zero_centred: bool = False,
    ) -> Array:
        """See :meth:`.norms.Norms.add_rmsnorm`."""
        return self._norms.add_rmsnorm(
            x, residual, weight, eps=eps, rows=rows, out_name="normed", is_zero_centred=is_zero_centred
        )
