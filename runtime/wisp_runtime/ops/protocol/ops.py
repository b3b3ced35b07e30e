"""The operations of a device as layers and models see them, subject by subject."""

from __future__ import annotations

from typing import Protocol

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.ops.protocol.attention import AttentionOps, Encodings, RopeTable
from wisp_runtime.ops.protocol.cache import CacheOps
from wisp_runtime.ops.protocol.elementwise import ElementwiseOps
from wisp_runtime.ops.protocol.gemm import GemmOps
from wisp_runtime.ops.protocol.moe import MoeOps
from wisp_runtime.ops.protocol.persistent import PersistentKernel
from wisp_runtime.ops.protocol.recurrent import RecurrentOps
from wisp_runtime.ops.protocol.sampling import SamplingOps
from wisp_runtime.ops.protocol.weights.storage import NamedWeights, WeightOps


class Ops(
    GemmOps, MoeOps, AttentionOps, ElementwiseOps, RecurrentOps, SamplingOps, CacheOps, WeightOps, Protocol
):
    """All operations of one device. Arrays are the device's own; activations are ``[N, ...]``, a token a row.

    Every method raises ShapeError when an array differs from its docstring.

    Attributes:
        device: ``cpu`` or ``cuda``.
        kernels: the kernel set's name, as ``/state`` shows it.
    """

    device: str
    kernels: str

    def set_batch_invariant(self) -> None:
        """Make a row's results independent of the other rows of a batch from here on.

        Raises:
            ConfigError: the device cannot.
        """
        ...

    def persistent_kernel(
        self,
        spec: ModelSpec,
        weights: NamedWeights,
        rope: RopeTable,
        max_sequences: int,
        kv: Encodings,
        *,
        must_be_timed: bool = False,
    ) -> PersistentKernel | str:
        """Return the persistent kernel for decode steps of up to ``max_sequences``, or why there is none.

        Args:
            kv: encoding of each layer's keys and values, of one format.
            must_be_timed: whether to refuse one that was never timed beside the general path.

        Raises:
            KernelNotCompiled: the model can have one, which is not compiled.
        """
        ...
