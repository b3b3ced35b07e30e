"""What a device offers to layers and models: the ops, and how weights are stored for them.

The layers only ever see this Protocol. ``load`` picks the backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch, Sampled, SamplingBatch
from wisp_runtime.errors import GpuUnavailable
from wisp_runtime.ops.cuda.device.context_prefetch import EarlyContext
from wisp_runtime.ops.protocol.persistent import StepWeights, WholeStep
from wisp_runtime.ops.protocol.upload import RowPermutation, WeightDestination, WeightUploader

__all__ = ["EarlyContext", "Heads", "Matrix", "Memory", "Ops", "Rotation", "begin", "load"]

_LEAST_CAPABILITY = 8, 0  # the first that computes in bf16

Matrix = Any  # a weight matrix [out, in] as the backend stores it; only its ops look inside


@dataclass(frozen=True, slots=True)
class Heads:
    """How a row of Q, K and V is cut, and the norm that some models put on each head of Q and K.

    Attributes:
        queries, keys: Hq, Hkv.
        size: Dh.
        q_norm, k_norm: ``[Dh]`` of the device, or None.
        eps: of those norms.
    """

    queries: int
    keys: int
    size: int
    q_norm: Array | None = None
    k_norm: Array | None = None
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of every position, ``[S, R / 2]`` float32 of the device; R channels turn."""

    cosines: Array
    sines: Array


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory a device has left.

    Attributes:
        device: ``cpu`` or ``cuda``.
        device_name: as a message names it: ``this machine``, ``NVIDIA H200``.
        free_bytes: what this process may still take.
        total_bytes: what a GPU has in all, in use or not.
        process_bytes: what this process holds already of a GPU, its context included; None is not known.
        sm_count: SMs of a GPU.
    """

    device: Literal["cpu", "cuda"]
    device_name: str
    free_bytes: int
    total_bytes: int = 0
    process_bytes: int | None = None
    sm_count: int | None = None


class Ops(Protocol):
    """The ops of one device. Arrays are the device's own; activations are ``[N, ...]``, a token a row.

    Every method raises ShapeError when an array differs from what is said here.
    """

    device: str
    kernels: str  # the kernel set's name, as ``/state`` shows it

    def matrix_elements(self, outputs: int, inputs: int) -> int:
        """Return how many elements a stored ``[outputs, inputs]`` matrix takes, padding included."""
        ...

    def weight_arena(self, elements: int) -> Array:
        """Allocate ``[elements]`` for all weights at once, zeroed, its start aligned to 128 bytes or more."""
        ...

    def row_permutation(self, permutation: RowPermutation) -> RowPermutation:
        """Return the permutation of rows that may be held in ``permutation``: that one, or plain."""
        ...

    def matrix(
        self, storage: Array, outputs: int, inputs: int, permutation: RowPermutation = "plain"
    ) -> Matrix:
        """Make ``storage``, ``[matrix_elements(outputs, inputs)]`` of the arena, a matrix."""
        ...

    def uploader(self, total_bytes: int) -> WeightUploader:
        """Return an uploader of a checkpoint's rows, ``total_bytes`` in all, into weights of the arena."""
        ...

    def randomize(self, destination: WeightDestination, *, key: int, mean: float, deviation: float) -> None:
        """Fill a whole weight with :func:`.reference.random_values`; padding stays zero."""
        ...

    def fix_order(self) -> None:
        """Let a row's results depend on nothing but itself from here on, whatever else is in a batch."""
        ...

    def memory(self) -> Memory:
        """Say how much memory the device has left now."""
        ...

    def from_host(self, array: Array) -> Array:
        """Return a host array as an array of this device."""
        ...

    def kv_arena(self, shape: tuple[int, ...]) -> Array:
        """Allocate keys or values, ``[L, P, Hkv, Tb, Dh]``; what is in it is not said."""
        ...

    def to_host(self, array: Array) -> Array:
        """Return an array of this device as a host array of float32; waits for the device."""
        ...

    def embedding(self, tokens: Array, table: Matrix) -> Array:
        """Return row ``tokens[n]`` of ``table`` ``[V, D]`` for each n: the residual, ``[N, D]`` float32."""
        ...

    def rmsnorm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """Scale each row of ``x`` ``[N, D]`` to root mean square 1, then by ``weight`` ``[D]``."""
        ...

    def add_rmsnorm(
        self, x: Array, residual: Array, weight: Array, *, eps: float, rows: Array | None = None
    ) -> Array:
        """Add ``x`` into ``residual`` in place (both ``[N, D]``) and return the norm of the sum.

        With ``rows`` ``[R]``, none twice, ``x`` is ``[R, D]``: row i is added into row ``rows[i]``, the other
        rows stay as they are, and the norm is that of those rows, ``[R, D]``.
        """
        ...

    def take_rows(self, x: Array, rows: Array) -> Array:
        """Return row ``rows[i]`` of ``x`` ``[N, in]`` for each i: ``[R, in]``, contiguous."""
        ...

    def linear(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``x W^T + bias``: ``[N, in]`` to ``[N, out]``."""
        ...

    def swiglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``silu(gate) * up`` of a matrix of gate above up: ``[N, D]`` to ``[N, F]``."""
        ...

    def logits(self, x: Array, weight: Matrix) -> Array:
        """Return ``x W^T`` in float32: ``[R, D]`` to ``[R, V]``."""
        ...

    def project_qkv(
        self,
        x: Array,
        weight: Matrix,
        bias: Array | None,
        heads: Heads,
        rotary: Rotation,
        batch: Batch,
        keys: Array,
        values: Array,
    ) -> Array:
        """Multiply, norm and rotate the heads of Q and K, put K and V into the cache, and return Q.

        Args:
            x: ``[N, D]``.
            weight: ``[(Hq + 2 Hkv) Dh, D]``, Q above K above V; interleaved for RoPE only where
                :meth:`row_permutation` gave it.
            bias: ``[(Hq + 2 Hkv) Dh]`` permuted alike, or None.
            heads: how a row of the product is cut, and the norms of Q and K.
            rotary: the angles of every position.
            batch: whose ``positions`` and ``slots`` are read.
            keys, values: one layer's cache ``[P, Hkv, Tb, Dh]``.

        Returns:
            ``[N, Hq, Dh]``; its rows may be farther apart.
        """
        ...

    def paged_attention(
        self, q: Array, keys: Array, values: Array, batch: Batch, *, scale: float, window: int | None
    ) -> Array:
        """Let each query ``[N, Hq, Dh]`` attend to its sequence's cache: ``[N, Hq, Dh]``."""
        ...

    def whole_step(
        self, spec: ModelSpec, weights: StepWeights, rotation: Rotation, max_sequences: int
    ) -> WholeStep | str:
        """Return what runs decode steps of up to ``max_sequences`` in one launch, or why nothing does."""
        ...

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """Choose the next token of each row of ``logits`` ``[R, V]``; the answer is on the host."""
        ...


def begin(device: str) -> EarlyContext | None:
    """Start making the context of a GPU, if ``device`` may mean one: it takes longer than anything else."""
    return None if device == "cpu" else EarlyContext()


def load(device: str, *, threads: int | None = None, context: EarlyContext | None = None) -> Ops:
    """Return the ops of ``device``.

    Args:
        device: ``cpu``; ``cuda``; or ``auto``: a GPU with bf16 if CuPy is installed, else the CPU.
        threads: CPU threads; None uses every CPU this process may run on.
        context: what :func:`begin` returned; None begins now.

    Raises:
        GpuUnavailable: ``cuda``, and there is no GPU that we may use, or CuPy is not installed.
        KernelsMissing: ``cuda``, and there are no kernels for the GPU.
    """
    if device != "cpu" and _takes_gpu(device, context or EarlyContext()):
        try:
            from wisp_runtime.ops.cuda.ops import CudaOps  # CuPy loads only when it is going to be used
        except ImportError as error:
            raise GpuUnavailable(
                f"--device cuda: {error}. Run pip install -e '.[cuda]' in a clone, or use Wisp's image; "
                "without a GPU, set --device cpu."
            ) from error
        return CudaOps.open()
    from wisp_runtime.ops.cpu.ops import CpuOps  # NumPy loads only when it is going to be used

    return CpuOps(threads)


def _takes_gpu(device: str, context: EarlyContext) -> bool:
    """Decide for the GPU; ``auto`` takes one that computes in bf16 where CuPy is installed."""
    if device == "cuda":
        return True
    if find_spec("cupy") is None:
        return False
    capability = context.wait()
    return capability is not None and capability >= _LEAST_CAPABILITY
