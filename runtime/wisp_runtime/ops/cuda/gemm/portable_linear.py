"""GEMMs with tiled or quantized weights on any GPU from sm_80 on: :class:`.linear.Linear` on mma.sync.

Checks, buffers and the cache of launches are Hopper's; only the launch differs.
"""

from __future__ import annotations

import numpy as np

from wisp_plan.memory.buffers.gemm import BLOCK_M
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.launch import Launch
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.gemm.portable_plan import (
    GemmArguments,
    PortablePlan,
    plan_portable,
    plan_quantized,
    quantized_arguments,
    quantized_entry,
)
from wisp_runtime.ops.cuda.gemm.tiling import GemmShape
from wisp_runtime.ops.cuda.gemm.token_codes import Codes
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

_THREADS = constants()["mma_gemm_threads"]


class PortableLinear(Linear):
    """Multiply activations by tiled or quantized weights; memory behind their last row is not read.

    Args:
        device: the GPU.
    """

    fuses_rope = False

    def _codes(self, op: str, x: Array, weight: Matrix) -> None:
        """Return None: E4M3 activations are Hopper's."""

    def _launch(
        self,
        op: str,
        x: Array,
        weight: Matrix,
        out: Array,
        partials: Array,
        arrivals: Array,
        codes: Codes | None,
    ) -> Launch:
        del codes  # there are none
        shape = GemmShape(weight.outputs, weight.inputs, len(x))
        gemm = {
            "out": out.data.ptr,
            "partials": partials.data.ptr,
            "arrivals": arrivals.data.ptr,
            "x_stride": x.strides[0] // BF16.itemsize,
            "rows": weight.outputs,
            "inputs": weight.inputs,
            "tokens": len(x),
        }
        formats: tuple[str, ...] = ()
        arguments = GemmArguments(**gemm)
        if isinstance(weight, QuantizedStorage):
            packed, formats = weight.packed, (weight.packed.name,)
            chosen = plan_quantized(packed, shape, self._device.sm_count)
            entry = quantized_entry(packed, chosen.block_n)
            arguments = quantized_arguments(packed, op, **gemm)
        else:
            chosen = plan_portable(shape, self._device.sm_count)
            entry = f"{op}_mma_n{chosen.block_n}"
        assert _partial_sums(chosen) <= partials.size
        return Launch(
            kernel=self._device.kernels.get(op, entry, *formats),
            grid=chosen.grid,
            threads=_THREADS,
            shared_bytes=chosen.shared_bytes,
            cluster=1,
            tokens=np.uint64(x.data.ptr),
            arguments=arguments,
        )


def _partial_sums(plan: PortablePlan) -> int:
    n_tiles, m_tiles, splits = plan.grid
    return 0 if splits == 1 else n_tiles * m_tiles * splits * BLOCK_M * plan.block_n
